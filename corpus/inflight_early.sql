-- As inflight, but c1 commits the moment both slots are there: after the snapshot's point, and before the connector takes the time that its
-- snapshot reads carry as ts_us. So the first streamed transaction has sequence[0] null, LSNs below the snapshot's, and a ts_us below the reads' too. c1's update of entry (3, 3) is
-- the first change after the point (one record, of the other connector's slot, lies between; see inflight_tie).
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
-- committed before the snapshot's point: in the snapshot, not streamed
-- @session d
UPDATE public.accounts SET note = 'd, committed before the snapshot' WHERE id = 6;
INSERT INTO public.accounts VALUES (22, 'Owner 22', 4.00, 'd, committed before the snapshot');
-- @async c1
DO $$ BEGIN
  FOR i IN 1..10000 LOOP
    EXIT WHEN (SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL AND database = current_database()) = 2;
    PERFORM pg_sleep(0.001);
  END LOOP;
END $$;
UPDATE public.entries SET note = 'c1, the first record after the point' WHERE account = 3 AND entry = 3;
UPDATE public.accounts SET note = 'c1, right after the point' WHERE id = 9;
COMMIT;
-- @sleep 0.5
-- @session b
COMMIT;
-- @join c1
-- @phase stream
-- @wait select count(*) = :n from pg_stat_replication where state = 'streaming' and application_name like 'Debezium%'
-- @settle 3
-- @session c2
COMMIT;
-- @session main
UPDATE public.accounts SET note = 'after c1 and c2' WHERE id = 11;
