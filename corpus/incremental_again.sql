-- Incremental snapshot (signal table, chunks of 10) of rows that were there before the connector: snapshot.mode=no_data, or (incremental_again)
-- initial, so that the chunks read again what the initial snapshot read. Other sessions change the rows; transactions are in flight across it.
-- Two gates (advisory locks, taken by a trigger on the signal tables) stop the connectors at every window-open (gate 1: before a chunk is
-- read) and every window-close (gate 2: the chunk is read, the window still open), so the place of every change is known.
-- public.dbz_signal is the signal table of the plain variant, public.dbz_signal_s the schema variant's.
-- @phase setup
CREATE TABLE public.items (
  id    integer PRIMARY KEY,
  name  text NOT NULL,
  qty   integer NOT NULL DEFAULT 0,
  price numeric(10,2),
  note  text
);
CREATE TABLE public.lines (
  region  varchar(10) NOT NULL,
  line_no integer NOT NULL,
  qty     integer NOT NULL,
  note    text,
  PRIMARY KEY (region, line_no)
);
ALTER TABLE public.lines REPLICA IDENTITY FULL;
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
         count(*) FILTER (WHERE locktype = 'relation' AND relation = 'public.lines'::regclass) AS at_lines
  FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
-- items 10, 20 .. 500: chunk n holds 100n-90 .. 100n
INSERT INTO public.items SELECT 10 * i, 'Item ' || i, i, i * 1.25, CASE WHEN i % 7 = 0 THEN NULL ELSE 'as loaded' END FROM generate_series(1, 50) i;
-- 2 regions of 10: one chunk each at first
INSERT INTO public.lines SELECT r, n, n * 10, 'as loaded' FROM unnest(ARRAY['east','west']) r, generate_series(1, 10) n;

-- @phase stream
-- a commit that the stream sees before all the rest
UPDATE public.items SET note = 'before the signal' WHERE id IN (30, 330);
-- @session gatekeeper
SELECT pg_advisory_lock(1);
-- in flight: t1 commits between chunk 4 and chunk 5, t2 after the whole snapshot
-- @session t1
BEGIN;
UPDATE public.items SET qty = qty + 1000, note = 't1' WHERE id IN (50, 250);
DELETE FROM public.items WHERE id = 350;
UPDATE public.items SET id = 457, note = 't1 moved 450' WHERE id = 450;
INSERT INTO public.items VALUES (255, 'New in t1', 1, 1.00, 't1');
-- @session t2
BEGIN;
UPDATE public.items SET qty = qty + 2000, note = 't2' WHERE id IN (20, 320, 480);
DELETE FROM public.items WHERE id = 120;
UPDATE public.items SET id = 64, note = 't2 moved 60' WHERE id = 60;
INSERT INTO public.items VALUES (275, 'New in t2', 2, 2.00, 't2');
-- @session main
-- rows that change before the signal with the transactions above already open (their LSN is higher than those of t1 and t2)
UPDATE public.items SET note = 'after t1 and t2 began' WHERE id = 40;
BEGIN;
INSERT INTO public.dbz_signal VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["public.items", "public.lines"], "type": "incremental"}');
INSERT INTO public.dbz_signal_s VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["public.items", "public.lines"], "type": "incremental"}');
COMMIT;
-- @wait select at_open = :n from waiting

-- chunk 1 (10..100): changed before the read (seen by it), and after the read in its window (its read is dropped)
UPDATE public.items SET note = 'before chunk 1' WHERE id = 10;
DELETE FROM public.items WHERE id = 80;
-- @session gatekeeper
SELECT pg_advisory_lock(2);
SELECT pg_advisory_unlock(1);
-- @wait select at_close = :n from waiting
SELECT pg_advisory_lock(1);
-- @session main
UPDATE public.items SET note = 'in window 1' WHERE id = 90;
DELETE FROM public.items WHERE id = 100;
INSERT INTO public.items VALUES (85, 'New in window 1', 0, NULL, NULL);
-- @session gatekeeper
SELECT pg_advisory_unlock(2);
-- @wait select at_open = :n from waiting
-- @settle 1

-- chunk 2 (110..200), after chunk 1's reads were emitted
-- @session main
UPDATE public.items SET note = 'between 1 and 2' WHERE id IN (10, 70);
DELETE FROM public.items WHERE id = 30;
DELETE FROM public.items WHERE id = 130;
UPDATE public.items SET id = 148, note = 'moved 140 before its chunk' WHERE id = 140;
UPDATE public.items SET id = 495, note = 'moved 150 to a later chunk' WHERE id = 150;
INSERT INTO public.items VALUES (15, 'Below the next chunk', 1, 1.50, NULL), (155, 'In chunk 2', 1, 1.50, NULL);
-- @session gatekeeper
SELECT pg_advisory_lock(2);
SELECT pg_advisory_unlock(1);
-- @wait select at_close = :n from waiting
SELECT pg_advisory_lock(1);
-- @session t3
BEGIN;
UPDATE public.items SET note = 't3 in window 2' WHERE id IN (160, 210, 310);
DELETE FROM public.lines WHERE region = 'east' AND line_no = 2;
UPDATE public.lines SET note = 't3' WHERE region = 'east' AND line_no = 3;
-- @session main
BEGIN;
UPDATE public.items SET id = 171, note = 'moved 170 in window 2' WHERE id = 170;
UPDATE public.items SET qty = 1 WHERE id = 180;
UPDATE public.items SET qty = 2 WHERE id = 180;
DELETE FROM public.items WHERE id = 190;
INSERT INTO public.items VALUES (190, 'Again', 190, 1.90, 'deleted and inserted in window 2');
COMMIT;
-- @session gatekeeper
SELECT pg_advisory_unlock(2);
-- @wait select at_open = :n from waiting
-- @settle 1

-- chunk 3 (t1, t2, t3 in flight; nothing else commits between window 2's close and window 3's open)
-- @session gatekeeper
SELECT pg_advisory_lock(2);
SELECT pg_advisory_unlock(1);
-- @wait select at_close = :n from waiting
SELECT pg_advisory_lock(1);
SELECT pg_advisory_unlock(2);
-- @wait select at_open = :n from waiting

-- chunk 4: t3 commits in its window
SELECT pg_advisory_lock(2);
SELECT pg_advisory_unlock(1);
-- @wait select at_close = :n from waiting
SELECT pg_advisory_lock(1);
-- @session t3
COMMIT;
-- @session gatekeeper
SELECT pg_advisory_unlock(2);
-- @wait select at_open = :n from waiting
-- @settle 1

-- t1 commits: its changes have LSNs below those of the reads of chunks 1, 3 and 4
-- @session t1
COMMIT;
-- @session main
UPDATE public.items SET qty = qty + 1 WHERE id = 50;

-- chunk 5 (the row moved to 495 shifts the rest) and the rest: no stops
-- @session gatekeeper
SELECT pg_advisory_unlock(1);
-- @settle 3

-- Second run: lines only, stopped once more at the gates. t2 is still in flight.
SELECT pg_advisory_lock(1);
-- @session main
BEGIN;
INSERT INTO public.dbz_signal VALUES ('snap-2', 'execute-snapshot', '{"data-collections": ["public.lines"], "type": "incremental"}');
INSERT INTO public.dbz_signal_s VALUES ('snap-2', 'execute-snapshot', '{"data-collections": ["public.lines"], "type": "incremental"}');
COMMIT;
-- @wait select at_open = :n from waiting
-- changes committed after the window's open and before the chunk's read: the read waits for a table lock
-- @session locker
BEGIN;
LOCK TABLE public.lines IN ACCESS EXCLUSIVE MODE;
-- @session gatekeeper
SELECT pg_advisory_lock(2);
SELECT pg_advisory_unlock(1);
-- @wait select at_lines = :n from waiting
-- @session locker
UPDATE public.lines SET qty = -1, note = 'after open, before read' WHERE region = 'east' AND line_no IN (4, 5);
DELETE FROM public.lines WHERE region = 'east' AND line_no = 6;
UPDATE public.lines SET line_no = 70 WHERE region = 'east' AND line_no = 7;
INSERT INTO public.lines VALUES ('east', 0, 0, 'after open, before read');
COMMIT;
-- @wait select at_close = :n from waiting
-- @session gatekeeper
SELECT pg_advisory_lock(1);
-- @session main
UPDATE public.lines SET note = 'after read, in window' WHERE region = 'east' AND line_no IN (5, 8);
DELETE FROM public.lines WHERE region = 'east' AND line_no = 9;
-- t2, long since open, writes more
-- @session t2
UPDATE public.lines SET note = 't2' WHERE region = 'east' AND line_no = 10;
UPDATE public.lines SET note = 't2' WHERE region = 'west' AND line_no = 1;
DELETE FROM public.lines WHERE region = 'west' AND line_no = 2;
UPDATE public.lines SET region = 'moved' WHERE region = 'west' AND line_no = 3;
-- @session gatekeeper
SELECT pg_advisory_unlock(2);
-- @wait select at_open = :n from waiting
-- @settle 1
SELECT pg_advisory_unlock(1);
-- @settle 3
-- t2 commits after everything was read with the old values
-- @session t2
COMMIT;
-- @session main
UPDATE public.items SET note = 'after t2' WHERE id = 480;
-- @settle 1
