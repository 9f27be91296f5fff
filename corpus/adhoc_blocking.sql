-- Ad-hoc blocking snapshot (signal of type blocking) after an initial snapshot: changes before and after it, changes committed right after the signal
-- (read by the snapshot AND streamed after it), changes committed while it reads (not read), and transactions in flight across it.
-- @phase setup
CREATE TABLE public.accounts (id integer PRIMARY KEY, owner text NOT NULL, balance numeric(12,2) NOT NULL, note text);
INSERT INTO public.accounts SELECT i, 'Owner ' || i, 100.00, 'as loaded' FROM generate_series(1, 20) i;
CREATE TABLE public.entries (account integer, entry integer, note text, PRIMARY KEY (account, entry));
ALTER TABLE public.entries REPLICA IDENTITY FULL;
INSERT INTO public.entries SELECT a, e, 'as loaded' FROM generate_series(1, 3) a, generate_series(1, 4) e;
CREATE TABLE public.dbz_signal (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));
CREATE TABLE public.dbz_signal_s (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));
CREATE VIEW public.waiting AS
  SELECT count(*) FILTER (WHERE locktype = 'advisory' AND objid = 1) AS at_open,
         count(*) FILTER (WHERE locktype = 'advisory' AND objid = 2) AS at_close,
         count(*) FILTER (WHERE locktype = 'relation' AND relation = 'public.entries'::regclass) AS at_entries
  FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- @phase stream
UPDATE public.accounts SET note = 'before' WHERE id IN (1, 15);
DELETE FROM public.accounts WHERE id = 20;
-- @session t1
BEGIN;
UPDATE public.accounts SET balance = 1.00, note = 't1' WHERE id = 3;
DELETE FROM public.accounts WHERE id = 4;
UPDATE public.accounts SET id = 25, note = 't1 moved 5' WHERE id = 5;
INSERT INTO public.accounts VALUES (21, 'Owner 21', 1.00, 't1');
-- @session t2
BEGIN;
UPDATE public.accounts SET balance = 2.00, note = 't2' WHERE id IN (11, 12);
DELETE FROM public.accounts WHERE id = 13;
-- @session main
UPDATE public.accounts SET note = 'before, t1 and t2 open' WHERE id = 15;
-- @settle 1
-- the snapshot stops at public.entries
-- @session locker
BEGIN;
LOCK TABLE public.entries IN ACCESS EXCLUSIVE MODE;
UPDATE public.entries SET note = 'in flight in the session that holds the lock' WHERE account = 1 AND entry = 1;
DELETE FROM public.entries WHERE account = 1 AND entry = 2;
-- @session main
BEGIN;
INSERT INTO public.dbz_signal VALUES ('blocking-1', 'execute-snapshot', '{"data-collections": ["public.accounts", "public.entries"], "type": "blocking"}');
INSERT INTO public.dbz_signal_s VALUES ('blocking-1', 'execute-snapshot', '{"data-collections": ["public.accounts", "public.entries"], "type": "blocking"}');
COMMIT;
UPDATE public.accounts SET note = 'right after the signal, 1st' WHERE id IN (1, 2);
UPDATE public.accounts SET note = 'right after the signal, 2nd' WHERE id = 1;
DELETE FROM public.accounts WHERE id = 6;
UPDATE public.accounts SET id = 27, note = 'moved 7 right after the signal' WHERE id = 7;
INSERT INTO public.accounts VALUES (22, 'Owner 22', 22, 'right after the signal'), (23, 'Owner 23', 23, 'right after the signal');
UPDATE public.accounts SET note = 'right after the signal, changed' WHERE id = 22;
DELETE FROM public.accounts WHERE id = 23;
-- @wait select at_entries = :n from waiting
-- the snapshot's view of the database is taken, its reading of public.entries waits, the stream is stopped
UPDATE public.accounts SET note = 'while it reads' WHERE id IN (1, 8);
DELETE FROM public.accounts WHERE id = 9;
INSERT INTO public.accounts VALUES (24, 'Owner 24', 24, 'while it reads');
-- @session t3
BEGIN;
UPDATE public.accounts SET note = 't3, begun while it reads' WHERE id = 10;
-- @session locker
UPDATE public.entries SET note = 'while it reads' WHERE account = 1 AND entry = 3;
COMMIT;
-- @settle 4
-- t1: the first transaction that commits after the snapshot's end; all LSNs but the last below those of the reads
-- @session t1
UPDATE public.accounts SET note = 't1 after the snapshot' WHERE id = 14;
COMMIT;
-- @session main
UPDATE public.accounts SET note = 'after' WHERE id IN (3, 16);
-- @session t2
COMMIT;
-- @session t3
COMMIT;
-- @settle 2
-- once more, nothing but t4 between the signal and the end
-- @session t4
BEGIN;
UPDATE public.entries SET note = 't4' WHERE account = 2;
DELETE FROM public.entries WHERE account = 3 AND entry = 1;
-- @session main
BEGIN;
INSERT INTO public.dbz_signal VALUES ('blocking-2', 'execute-snapshot', '{"data-collections": ["public.entries"], "type": "blocking"}');
INSERT INTO public.dbz_signal_s VALUES ('blocking-2', 'execute-snapshot', '{"data-collections": ["public.entries"], "type": "blocking"}');
COMMIT;
-- @settle 4
-- @session t4
COMMIT;
-- @settle 2
-- @session main
UPDATE public.entries SET note = 'the end' WHERE account = 3;
