-- Read-only incremental snapshot (read.only=true, signal by file, chunks of 10; no signal table). There are no watermark rows: a chunk's reads wait
-- until a message of a transaction beyond the chunk's high watermark comes, and carry that message's sequence. Here that message is a change of a row
-- of the chunk itself.
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
INSERT INTO public.items SELECT 10 * i, 'Item ' || i, i, i * 1.25, 'as loaded' FROM generate_series(1, 30) i;
INSERT INTO public.lines SELECT 'east', n, n * 10, 'as loaded' FROM generate_series(1, 3) n;
-- @phase stream
UPDATE public.lines SET note = 'first' WHERE line_no = 1;
-- @settle 2
-- @session t1
BEGIN;
UPDATE public.items SET note = 't1' WHERE id IN (40, 140, 240);
DELETE FROM public.items WHERE id = 50;
-- @session main
-- @signal plain {"id": "ro-1", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @signal schema {"id": "ro-1", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @sleep 2
-- chunk 1 is read; the next message closes its window
UPDATE public.items SET note = 'closes window 1' WHERE id IN (30, 60);
-- @sleep 1
DELETE FROM public.items WHERE id = 130;
-- @sleep 1
UPDATE public.items SET id = 235, note = 'moved 230' WHERE id = 230;
-- @sleep 1
INSERT INTO public.items VALUES (400, 'Above the maximum key', 1, 1, NULL);
-- @sleep 1
-- @session t1
COMMIT;
-- @sleep 1
-- @session main
UPDATE public.lines SET note = 'after t1' WHERE line_no = 1;
-- @sleep 1
UPDATE public.items SET note = 'after t1' WHERE id IN (70, 170, 270);
-- @sleep 1
UPDATE public.items SET note = 'after t1, 2' WHERE id IN (110, 120, 210);
-- @sleep 1
UPDATE public.items SET note = 'after t1, 3' WHERE id IN (220, 290, 300);
-- @sleep 1
UPDATE public.lines SET note = 'end' WHERE line_no = 2;
-- @settle 2
-- again, with no transaction in flight
-- @signal plain {"id": "ro-2", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @signal schema {"id": "ro-2", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @sleep 2
UPDATE public.items SET note = 'closes window 1 of ro-2' WHERE id IN (20, 80);
-- @sleep 1
DELETE FROM public.items WHERE id = 150;
-- @sleep 1
BEGIN;
UPDATE public.items SET note = 'closes a window of ro-2' WHERE id = 280;
UPDATE public.items SET id = 265, note = 'moved 260' WHERE id = 260;
COMMIT;
-- @sleep 1
UPDATE public.lines SET note = 'end' WHERE line_no = 3;
-- @sleep 1
UPDATE public.lines SET note = 'really' WHERE line_no = 3;
-- @settle 2
-- the first change after the reads is a delete
-- @signal plain {"id": "ro-3", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @signal schema {"id": "ro-3", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @sleep 2
DELETE FROM public.items WHERE id = 90;
-- @settle 2
-- ... a key update
-- @signal plain {"id": "ro-4", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @signal schema {"id": "ro-4", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @sleep 2
UPDATE public.items SET id = 205, note = 'moved 200' WHERE id = 200;
-- @settle 2
-- ... a change made before the signal's chunks were read, in a transaction that commits after they were emitted
-- @session t2
BEGIN;
UPDATE public.items SET note = 't2' WHERE id = 10;
-- @session main
-- @signal plain {"id": "ro-5", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @signal schema {"id": "ro-5", "type": "execute-snapshot", "data": {"data-collections": ["public.items"], "type": "incremental"}}
-- @sleep 2
-- @session t2
COMMIT;
-- @settle 2
-- @session main
UPDATE public.items SET note = 'the end' WHERE id = 60;
