-- Initial snapshot with a slot (and publication) that was there before the connector's first start: the snapshot is of the connector's start, the
-- stream is asked for from there; committed changes lie between the slot's point and the snapshot, and transactions are in flight across it.
-- @phase setup
CREATE TABLE public.accounts (id integer PRIMARY KEY, owner text NOT NULL, balance numeric(12,2) NOT NULL, note text);
INSERT INTO public.accounts SELECT i, 'Owner ' || i, 100.00, 'as loaded' FROM generate_series(1, 20) i;
CREATE TABLE public.entries (account integer, entry integer, note text, PRIMARY KEY (account, entry));
ALTER TABLE public.entries REPLICA IDENTITY FULL;
INSERT INTO public.entries SELECT a, e, 'as loaded' FROM generate_series(1, 3) a, generate_series(1, 4) e;
CREATE PUBLICATION dbz_inflight_slot_plain FOR TABLE public.accounts, public.entries;
CREATE PUBLICATION dbz_inflight_slot_schema FOR TABLE public.accounts, public.entries;
SELECT pg_create_logical_replication_slot('dbz_inflight_slot_plain', 'pgoutput');
SELECT pg_create_logical_replication_slot('dbz_inflight_slot_schema', 'pgoutput');
UPDATE public.accounts SET note = 'after the slot, before the snapshot' WHERE id IN (1, 2);
DELETE FROM public.accounts WHERE id = 20;
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
UPDATE public.accounts SET note = 'after t1 and t2 began, before the snapshot' WHERE id = 2;
-- @phase stream
-- @wait select count(*) = :n from pg_stat_replication where state = 'streaming' and application_name like 'Debezium%'
-- @settle 3
-- @session t1
UPDATE public.accounts SET balance = 1.50, note = 't1 after the snapshot' WHERE id = 7;
COMMIT;
-- @session t2
COMMIT;
-- @session main
UPDATE public.accounts SET note = 'after t1 and t2' WHERE id = 11;
