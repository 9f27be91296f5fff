-- Ad-hoc blocking snapshot, signalled by file: its reads carry the position of the last streamed event (here a change of one of the rows read).
-- @phase setup
CREATE TABLE public.accounts (id integer PRIMARY KEY, owner text NOT NULL, balance numeric(12,2) NOT NULL, note text);
INSERT INTO public.accounts SELECT i, 'Owner ' || i, 100.00, 'as loaded' FROM generate_series(1, 20) i;
CREATE TABLE public.entries (account integer, entry integer, note text, PRIMARY KEY (account, entry));
ALTER TABLE public.entries REPLICA IDENTITY FULL;
INSERT INTO public.entries SELECT a, e, 'as loaded' FROM generate_series(1, 3) a, generate_series(1, 4) e;
-- @phase stream
UPDATE public.entries SET note = 'first' WHERE account = 1 AND entry = 1;
-- @session t1
BEGIN;
UPDATE public.accounts SET note = 't1' WHERE id IN (3, 4);
DELETE FROM public.accounts WHERE id = 5;
-- @session main
UPDATE public.accounts SET note = 'last before the signal' WHERE id = 2;
-- @settle 2
-- @signal plain {"id": "file-1", "type": "execute-snapshot", "data": {"data-collections": ["public.accounts", "public.entries"], "type": "blocking"}}
-- @signal schema {"id": "file-1", "type": "execute-snapshot", "data": {"data-collections": ["public.accounts", "public.entries"], "type": "blocking"}}
-- @settle 4
UPDATE public.accounts SET note = 'first after the snapshot' WHERE id IN (2, 6);
-- @settle 2
-- @session t1
COMMIT;
-- @settle 2
-- the signal, and at once a lot of small transactions: the stream is stopped somewhere among them
-- @session main
-- @signal plain {"id": "file-2", "type": "execute-snapshot", "data": {"data-collections": ["public.accounts"], "type": "blocking"}}
-- @signal schema {"id": "file-2", "type": "execute-snapshot", "data": {"data-collections": ["public.accounts"], "type": "blocking"}}
DO $$ BEGIN
  FOR i IN 1..40 LOOP
    UPDATE public.accounts SET balance = i, note = 'w' || i WHERE id = 7 + i % 3;
    COMMIT;
    IF i % 10 = 0 THEN DELETE FROM public.accounts WHERE id = 10 + i / 10; COMMIT; INSERT INTO public.accounts VALUES (30 + i, 'Owner', i, 'w' || i); COMMIT; END IF;
    PERFORM pg_sleep(0.02);
  END LOOP;
END $$;
-- @settle 3
UPDATE public.accounts SET note = 'the end' WHERE id = 7;
