-- Initial snapshot with transactions in flight. PostgreSQL makes a new slot's snapshot only once the transactions that were open have ended, so a
-- transaction is in flight across it only if it began while the slot was being made: a holds the slot's making in its first phase, b in the second;
-- c1, c2 and c3 begin during the second, so they are neither waited for nor in the snapshot, and are streamed when they commit.
-- @phase setup
CREATE TABLE public.accounts (id integer PRIMARY KEY, owner text NOT NULL, balance numeric(12,2) NOT NULL, note text);
INSERT INTO public.accounts SELECT i, 'Owner ' || i, 100.00, 'as loaded' FROM generate_series(1, 20) i;
CREATE TABLE public.entries (account integer, entry integer, note text, PRIMARY KEY (account, entry));
ALTER TABLE public.entries REPLICA IDENTITY FULL;
INSERT INTO public.entries SELECT a, e, 'as loaded' FROM generate_series(1, 3) a, generate_series(1, 4) e;
-- @session a
SET application_name = 'a';
BEGIN;
UPDATE public.accounts SET note = 'a' WHERE id = 1;
-- @launch
-- @wait select count(*) = :n from pg_locks where locktype = 'transactionid' and not granted and transactionid = (select backend_xid from pg_stat_activity where application_name = 'a' and datname = current_database())
-- @session b
SET application_name = 'b';
BEGIN;
UPDATE public.accounts SET note = 'b' WHERE id = 2;
-- @session a
COMMIT;
-- @wait select count(*) = :n from pg_locks where locktype = 'transactionid' and not granted and transactionid = (select backend_xid from pg_stat_activity where application_name = 'b' and datname = current_database())
-- @session c2
BEGIN;
UPDATE public.accounts SET balance = 2.00, note = 'c2' WHERE id IN (11, 12);
DELETE FROM public.entries WHERE account = 2 AND entry = 1;
-- @session c1
BEGIN;
UPDATE public.accounts SET balance = 1.00, note = 'c1' WHERE id = 3;
DELETE FROM public.accounts WHERE id = 4;
UPDATE public.accounts SET id = 25, note = 'c1 moved 5' WHERE id = 5;
INSERT INTO public.accounts VALUES (21, 'Owner 21', 1.00, 'c1');
UPDATE public.entries SET note = 'c1' WHERE account = 1 AND entry = 1;
-- @session c3
BEGIN;
UPDATE public.accounts SET balance = 3.00, note = 'c3 first' WHERE id = 13;
-- committed before the snapshot's point: in the snapshot, not streamed
-- @session d
UPDATE public.accounts SET note = 'd, committed before the snapshot' WHERE id = 6;
INSERT INTO public.accounts VALUES (22, 'Owner 22', 4.00, 'd, committed before the snapshot');
-- @session b
COMMIT;
-- @phase stream
-- @wait select count(*) = :n from pg_stat_replication where state = 'streaming' and application_name like 'Debezium%'
-- @settle 3
-- the first streamed transaction: what c1 wrote before and after the snapshot
-- @session c1
UPDATE public.accounts SET balance = 1.50, note = 'c1 after the snapshot' WHERE id = 7;
UPDATE public.entries SET note = 'c1 after the snapshot' WHERE account = 1 AND entry = 2;
COMMIT;
-- @session c2
UPDATE public.accounts SET balance = 2.50, note = 'c2 again' WHERE id = 12;
COMMIT;
-- @session main
UPDATE public.accounts SET note = 'after c1 and c2' WHERE id IN (7, 11);
INSERT INTO public.accounts VALUES (4, 'Owner 4 again', 4.00, 'after c1');
DELETE FROM public.entries WHERE account = 3 AND entry = 4;
-- @session c3
UPDATE public.accounts SET balance = 3.50, note = 'c3' WHERE id = 13;
DELETE FROM public.accounts WHERE id = 14;
COMMIT;
