-- snapshot.mode=always: every start of the connector reads all rows again, though slot and offsets are there. Transactions are in flight across the
-- second start, and changes are committed while the connector is down.
-- @phase setup
CREATE TABLE public.accounts (id integer PRIMARY KEY, owner text NOT NULL, balance numeric(12,2) NOT NULL, note text);
INSERT INTO public.accounts SELECT i, 'Owner ' || i, 100.00, 'as loaded' FROM generate_series(1, 20) i;
CREATE TABLE public.entries (account integer, entry integer, note text, PRIMARY KEY (account, entry));
ALTER TABLE public.entries REPLICA IDENTITY FULL;
INSERT INTO public.entries SELECT a, e, 'as loaded' FROM generate_series(1, 3) a, generate_series(1, 4) e;
-- @phase stream
UPDATE public.accounts SET note = 'streamed, first run' WHERE id IN (1, 2);
DELETE FROM public.accounts WHERE id = 20;
-- @settle 2
-- @session t1
BEGIN;
UPDATE public.accounts SET balance = 1.00, note = 't1' WHERE id = 3;
DELETE FROM public.accounts WHERE id = 4;
UPDATE public.accounts SET id = 25, note = 't1 moved 5' WHERE id = 5;
INSERT INTO public.accounts VALUES (21, 'Owner 21', 1.00, 't1');
UPDATE public.entries SET note = 't1' WHERE account = 1 AND entry = 1;
-- @session t2
BEGIN;
UPDATE public.accounts SET balance = 2.00, note = 't2' WHERE id IN (11, 12);
DELETE FROM public.entries WHERE account = 2 AND entry = 1;
-- @session main
UPDATE public.accounts SET note = 'streamed, t1 and t2 open' WHERE id = 2;
-- @settle 2
-- @restart stop
UPDATE public.accounts SET note = 'while down' WHERE id IN (1, 15);
DELETE FROM public.accounts WHERE id = 16;
INSERT INTO public.accounts VALUES (30, 'Owner 30', 30, 'while down');
INSERT INTO public.accounts VALUES (31, 'Owner 31', 31, 'while down, gone before the start');
DELETE FROM public.accounts WHERE id = 31;
-- @start again
-- @settle 3
-- @session t1
UPDATE public.accounts SET balance = 1.50, note = 't1 after the snapshot' WHERE id = 7;
COMMIT;
-- @session t2
COMMIT;
-- @session main
UPDATE public.accounts SET note = 'after t1 and t2' WHERE id = 11;
