-- Incremental snapshots of two tables, chunks of 5, no stops: writers are at work all the time, t4 is in flight from before to after,
-- t5 from before to somewhere in it. Where the reads fall differs between the
-- variants: each has a signal table and windows of its own (insert_delete: watermark rows are deleted again; read_only: no signal table, signal by file).
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
CREATE TABLE public.dbz_signal_d (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));
CREATE TABLE public.dbz_signal_s (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));
INSERT INTO public.items SELECT 10 * i, 'Item ' || i, i, i * 1.25, CASE WHEN i % 7 = 0 THEN NULL ELSE 'as loaded' END FROM generate_series(1, 40) i;
INSERT INTO public.lines SELECT r, n, n * 10, 'as loaded' FROM unnest(ARRAY['north','west']) r, generate_series(1, 8) n;

-- @phase stream
UPDATE public.items SET note = 'first' WHERE id = 10;
-- @session t4
BEGIN;
UPDATE public.items SET note = 't4' WHERE id IN (70, 270, 370);
UPDATE public.lines SET note = 't4' WHERE line_no = 6;
-- @session t5
BEGIN;
UPDATE public.items SET note = 't5' WHERE id IN (20, 90, 290, 390, 400);
DELETE FROM public.items WHERE id IN (110, 360);
-- @session main
BEGIN;
INSERT INTO public.dbz_signal VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["public.lines", "public.items"], "type": "incremental"}');
INSERT INTO public.dbz_signal_s VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["public.lines", "public.items"], "type": "incremental"}');
INSERT INTO public.dbz_signal_d VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["public.lines", "public.items"], "type": "incremental"}');
COMMIT;
-- @signal read_only {"id": "snap-1", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @async w1
DO $$ BEGIN
  FOR i IN 1..30 LOOP
    UPDATE public.items SET qty = 100000 + i, note = 'w1' WHERE id = 210 + 10 * (i * 7 % 5);
    COMMIT;
    UPDATE public.lines SET qty = 100000 + i, note = 'w1' WHERE region = (ARRAY['north','west'])[1 + i % 2] AND line_no = 1 + i % 5;
    COMMIT;
    PERFORM pg_sleep(0.03);
  END LOOP;
END $$;
-- @async w2
DO $$ BEGIN
  FOR i IN 1..15 LOOP
    INSERT INTO public.items VALUES (300 + i * 13 % 97, 'w2', i, i, 'w2') ON CONFLICT (id) DO UPDATE SET qty = excluded.qty, note = 'w2 again';
    COMMIT;
    DELETE FROM public.items WHERE id = 300 + (i - 3) * 13 % 97;
    UPDATE public.items SET id = id + 1 WHERE id = 620 + i;
    COMMIT;
    PERFORM pg_sleep(0.04);
  END LOOP;
END $$;
-- @sleep 0.5
-- @session t5
COMMIT;
-- @join w1
-- @join w2
-- @settle 3
-- @session t4
COMMIT;
