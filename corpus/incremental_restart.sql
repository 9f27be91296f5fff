-- The connector's process is killed in the middle of an incremental snapshot (chunks of 5) and started again with its stored offsets; t1 is in
-- flight over signal, kill and restart, t2 commits while the connector is down. Gates as in incremental.sql.
-- @phase setup
CREATE TABLE public.accounts (id integer PRIMARY KEY, owner text NOT NULL, balance numeric(12,2) NOT NULL, note text);
INSERT INTO public.accounts SELECT i, 'Owner ' || i, 100.00, 'as loaded' FROM generate_series(1, 20) i;
CREATE TABLE public.entries (account integer, entry integer, note text, PRIMARY KEY (account, entry));
ALTER TABLE public.entries REPLICA IDENTITY FULL;
INSERT INTO public.entries SELECT a, e, 'as loaded' FROM generate_series(1, 3) a, generate_series(1, 4) e;
CREATE TABLE public.dbz_signal (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));
CREATE TABLE public.dbz_signal_s (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));
CREATE FUNCTION public.gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.type LIKE 'snapshot-window-%' THEN
    PERFORM pg_advisory_xact_lock_shared(CASE NEW.type WHEN 'snapshot-window-open' THEN 1 ELSE 2 END);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER gate BEFORE INSERT ON public.dbz_signal FOR EACH ROW EXECUTE FUNCTION public.gate();
CREATE TRIGGER gate BEFORE INSERT ON public.dbz_signal_s FOR EACH ROW EXECUTE FUNCTION public.gate();
CREATE VIEW public.waiting AS
  SELECT count(*) FILTER (WHERE locktype = 'advisory' AND objid = 1) AS at_open,
         count(*) FILTER (WHERE locktype = 'advisory' AND objid = 2) AS at_close,
         count(*) FILTER (WHERE locktype = 'relation' AND relation = 'public.entries'::regclass) AS at_entries
  FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- @phase stream
UPDATE public.accounts SET note = 'before the signal' WHERE id = 1;
-- @session t1
BEGIN;
UPDATE public.accounts SET balance = 1.00, note = 't1' WHERE id IN (3, 8, 13);
DELETE FROM public.accounts WHERE id IN (4, 14);
UPDATE public.accounts SET id = 25, note = 't1 moved 5' WHERE id = 5;
UPDATE public.entries SET note = 't1' WHERE account = 1;
-- @session t2
BEGIN;
UPDATE public.accounts SET balance = 2.00, note = 't2' WHERE id IN (2, 7, 12);
DELETE FROM public.accounts WHERE id = 9;
-- @session gatekeeper
SELECT pg_advisory_lock(1);
-- @session main
BEGIN;
INSERT INTO public.dbz_signal VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["public.accounts", "public.entries"], "type": "incremental"}');
INSERT INTO public.dbz_signal_s VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["public.accounts", "public.entries"], "type": "incremental"}');
COMMIT;
-- @wait select at_open = :n from waiting
-- chunk 1
-- @session gatekeeper
SELECT pg_advisory_lock(2);
SELECT pg_advisory_unlock(1);
-- @wait select at_close = :n from waiting
SELECT pg_advisory_lock(1);
SELECT pg_advisory_unlock(2);
-- @wait select at_open = :n from waiting
-- @settle 2
-- chunk 2 is read and its window is open when the process dies; chunk 1's reads are written down and acknowledged
SELECT pg_advisory_lock(2);
SELECT pg_advisory_unlock(1);
-- @wait select at_close = :n from waiting
-- @restart kill
SELECT pg_advisory_unlock(2);
-- @session main
UPDATE public.accounts SET note = 'while down' WHERE id IN (1, 6, 16);
DELETE FROM public.accounts WHERE id = 10;
UPDATE public.accounts SET id = 28, note = 'moved 18 while down' WHERE id = 18;
INSERT INTO public.accounts VALUES (30, 'Owner 30', 30, 'while down, above the maximum key'), (0, 'Owner 0', 0, 'while down');
-- @session t2
COMMIT;
-- @session gatekeeper
SELECT pg_advisory_lock(1);
-- @launch
-- @wait select at_open = :n from waiting
SELECT pg_advisory_lock(2);
SELECT pg_advisory_unlock(1);
-- @wait select at_close = :n from waiting
SELECT pg_advisory_lock(1);
SELECT pg_advisory_unlock(2);
-- @wait select at_open = :n from waiting
-- @settle 2
-- @session t1
COMMIT;
-- @session gatekeeper
SELECT pg_advisory_unlock(1);
-- @settle 4
-- killed once more after the reads were written down but before they are acknowledged: they come again
-- @session t3
BEGIN;
UPDATE public.entries SET note = 't3' WHERE account = 2;
DELETE FROM public.entries WHERE account = 3 AND entry = 2;
-- @session main
UPDATE public.entries SET note = 'before snap-2' WHERE account = 3 AND entry = 3;
-- @settle 2
-- @hold
BEGIN;
INSERT INTO public.dbz_signal VALUES ('snap-2', 'execute-snapshot', '{"data-collections": ["public.entries"], "type": "incremental"}');
INSERT INTO public.dbz_signal_s VALUES ('snap-2', 'execute-snapshot', '{"data-collections": ["public.entries"], "type": "incremental"}');
COMMIT;
-- @settle 3
UPDATE public.entries SET note = 'after snap-2 was read' WHERE account = 3 AND entry IN (3, 4);
-- @settle 2
-- @restart kill
-- @session t3
COMMIT;
-- @start again
-- @settle 3
-- @session main
UPDATE public.entries SET note = 'the end' WHERE account = 3 AND entry = 4;
