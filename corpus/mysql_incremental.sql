-- MySQL: incremental snapshot (signal table, chunks of 10) with snapshot.mode=no_data; the changes of incremental.sql, without its table lock.
-- Two gates (user locks g1, g2, taken by a trigger on the signal tables) stop the connectors at every window-open and window-close.
-- inc_db.dbz_signal is the signal table of the plain variant, inc_db.dbz_signal_s the schema variant's.
-- @phase setup
DROP DATABASE IF EXISTS inc_db;
CREATE USER IF NOT EXISTS dbz@'%' IDENTIFIED WITH caching_sha2_password BY 'dbz';
GRANT ALL PRIVILEGES ON *.* TO dbz@'%';
CREATE DATABASE inc_db CHARACTER SET utf8mb4;
USE inc_db;
CREATE TABLE items (
  id    INT PRIMARY KEY,
  name  VARCHAR(40) NOT NULL,
  qty   INT NOT NULL DEFAULT 0,
  price DECIMAL(10,2),
  note  VARCHAR(60)
);
CREATE TABLE `lines` (
  region  VARCHAR(10) NOT NULL,
  line_no INT NOT NULL,
  qty     INT NOT NULL,
  note    VARCHAR(60),
  PRIMARY KEY (region, line_no)
);
CREATE TABLE dbz_signal (id VARCHAR(64) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048));
CREATE TABLE dbz_signal_s (id VARCHAR(64) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048));
-- (one statement, so that the client needs no other delimiter)
CREATE TRIGGER gate BEFORE INSERT ON dbz_signal FOR EACH ROW
  SET @g = IF(NEW.type LIKE 'snapshot-window-%', GET_LOCK(IF(NEW.type = 'snapshot-window-open', 'g1', 'g2'), 60) + RELEASE_LOCK(IF(NEW.type = 'snapshot-window-open', 'g1', 'g2')), 0);
CREATE TRIGGER gate_s BEFORE INSERT ON dbz_signal_s FOR EACH ROW
  SET @g = IF(NEW.type LIKE 'snapshot-window-%', GET_LOCK(IF(NEW.type = 'snapshot-window-open', 'g1', 'g2'), 60) + RELEASE_LOCK(IF(NEW.type = 'snapshot-window-open', 'g1', 'g2')), 0);
CREATE VIEW waiting AS SELECT COALESCE(SUM(info LIKE '%window-open%' OR info LIKE '%g1%'), 0) AS at_open, COALESCE(SUM(info LIKE '%window-close%' OR info LIKE '%g2%'), 0) AS at_close
  FROM information_schema.processlist WHERE state = 'User lock';
-- items 10, 20 .. 500: chunk n holds 100n-90 .. 100n
INSERT INTO items WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 50) SELECT 10 * i, CONCAT('Item ', i), i, i * 1.25, IF(i % 7 = 0, NULL, 'as loaded') FROM s;
INSERT INTO `lines` WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 10) SELECT r, i, i * 10, 'as loaded' FROM s, (SELECT 'east' r UNION ALL SELECT 'west') x;

-- @phase stream
-- a commit that the stream sees before all the rest
UPDATE inc_db.items SET note = 'before the signal' WHERE id IN (30, 330);
-- @session gatekeeper
SELECT GET_LOCK('g1', 60);
-- in flight: t1 commits between chunk 4 and chunk 5, t2 after the whole snapshot
-- @session t1
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN;
UPDATE inc_db.items SET qty = qty + 1000, note = 't1' WHERE id IN (50, 250);
DELETE FROM inc_db.items WHERE id = 350;
UPDATE inc_db.items SET id = 457, note = 't1 moved 450' WHERE id = 450;
INSERT INTO inc_db.items VALUES (255, 'New in t1', 1, 1.00, 't1');
-- @session t2
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN;
UPDATE inc_db.items SET qty = qty + 2000, note = 't2' WHERE id IN (20, 320, 480);
DELETE FROM inc_db.items WHERE id = 120;
UPDATE inc_db.items SET id = 64, note = 't2 moved 60' WHERE id = 60;
INSERT INTO inc_db.items VALUES (275, 'New in t2', 2, 2.00, 't2');
-- @session main
-- rows that change before the signal with the transactions above already open 
UPDATE inc_db.items SET note = 'after t1 and t2 began' WHERE id = 40;
BEGIN;
INSERT INTO inc_db.dbz_signal VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["inc_db.items", "inc_db.lines"], "type": "incremental"}');
INSERT INTO inc_db.dbz_signal_s VALUES ('snap-1', 'execute-snapshot', '{"data-collections": ["inc_db.items", "inc_db.lines"], "type": "incremental"}');
COMMIT;
-- @wait select at_open = :n from inc_db.waiting

-- chunk 1 (10..100): changed before the read (seen by it), and after the read in its window (its read is dropped)
UPDATE inc_db.items SET note = 'before chunk 1' WHERE id = 10;
DELETE FROM inc_db.items WHERE id = 80;
-- @session gatekeeper
SELECT GET_LOCK('g2', 60);
SELECT RELEASE_LOCK('g1');
-- @wait select at_close = :n from inc_db.waiting
SELECT GET_LOCK('g1', 60);
-- @session main
UPDATE inc_db.items SET note = 'in window 1' WHERE id = 90;
DELETE FROM inc_db.items WHERE id = 100;
INSERT INTO inc_db.items VALUES (85, 'New in window 1', 0, NULL, NULL);
-- @session gatekeeper
SELECT RELEASE_LOCK('g2');
-- @wait select at_open = :n from inc_db.waiting
-- @settle 1

-- chunk 2 (110..200), after chunk 1's reads were emitted
-- @session main
UPDATE inc_db.items SET note = 'between 1 and 2' WHERE id IN (10, 70);
DELETE FROM inc_db.items WHERE id = 30;
DELETE FROM inc_db.items WHERE id = 130;
UPDATE inc_db.items SET id = 148, note = 'moved 140 before its chunk' WHERE id = 140;
UPDATE inc_db.items SET id = 495, note = 'moved 150 to a later chunk' WHERE id = 150;
INSERT INTO inc_db.items VALUES (15, 'Below the next chunk', 1, 1.50, NULL), (155, 'In chunk 2', 1, 1.50, NULL);
-- @session gatekeeper
SELECT GET_LOCK('g2', 60);
SELECT RELEASE_LOCK('g1');
-- @wait select at_close = :n from inc_db.waiting
SELECT GET_LOCK('g1', 60);
-- @session t3
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN;
UPDATE inc_db.items SET note = 't3 in window 2' WHERE id IN (160, 210, 310);
DELETE FROM inc_db.`lines` WHERE region = 'east' AND line_no = 2;
UPDATE inc_db.`lines` SET note = 't3' WHERE region = 'east' AND line_no = 3;
-- @session main
BEGIN;
UPDATE inc_db.items SET id = 171, note = 'moved 170 in window 2' WHERE id = 170;
UPDATE inc_db.items SET qty = 1 WHERE id = 180;
UPDATE inc_db.items SET qty = 2 WHERE id = 180;
DELETE FROM inc_db.items WHERE id = 190;
INSERT INTO inc_db.items VALUES (190, 'Again', 190, 1.90, 'deleted and inserted in window 2');
COMMIT;
-- @session gatekeeper
SELECT RELEASE_LOCK('g2');
-- @wait select at_open = :n from inc_db.waiting
-- @settle 1

-- chunk 3 (t1, t2, t3 in flight; nothing else commits between window 2's close and window 3's open)
-- @session gatekeeper
SELECT GET_LOCK('g2', 60);
SELECT RELEASE_LOCK('g1');
-- @wait select at_close = :n from inc_db.waiting
SELECT GET_LOCK('g1', 60);
SELECT RELEASE_LOCK('g2');
-- @wait select at_open = :n from inc_db.waiting

-- chunk 4: t3 commits in its window
SELECT GET_LOCK('g2', 60);
SELECT RELEASE_LOCK('g1');
-- @wait select at_close = :n from inc_db.waiting
SELECT GET_LOCK('g1', 60);
-- @session t3
COMMIT;
-- @session gatekeeper
SELECT RELEASE_LOCK('g2');
-- @wait select at_open = :n from inc_db.waiting
-- @settle 1

-- t1 commits
-- @session t1
COMMIT;
-- @session main
UPDATE inc_db.items SET qty = qty + 1 WHERE id = 50;

-- chunk 5 (the row moved to 495 shifts the rest) and the rest: no stops
-- @session gatekeeper
SELECT RELEASE_LOCK('g1');
-- @settle 3

-- Second run: lines only, stopped once more at the gates. t2 is still in flight.
SELECT GET_LOCK('g1', 60);
-- @session main
BEGIN;
INSERT INTO inc_db.dbz_signal VALUES ('snap-2', 'execute-snapshot', '{"data-collections": ["inc_db.lines"], "type": "incremental"}');
INSERT INTO inc_db.dbz_signal_s VALUES ('snap-2', 'execute-snapshot', '{"data-collections": ["inc_db.lines"], "type": "incremental"}');
COMMIT;
-- @wait select at_open = :n from inc_db.waiting
-- @session gatekeeper
SELECT GET_LOCK('g2', 60);
SELECT RELEASE_LOCK('g1');
-- @wait select at_close = :n from inc_db.waiting
-- @session gatekeeper
SELECT GET_LOCK('g1', 60);
-- @session main
UPDATE inc_db.`lines` SET note = 'after read, in window' WHERE region = 'east' AND line_no IN (5, 8);
DELETE FROM inc_db.`lines` WHERE region = 'east' AND line_no = 9;
-- t2, long since open, writes more
-- @session t2
UPDATE inc_db.`lines` SET note = 't2' WHERE region = 'east' AND line_no = 10;
UPDATE inc_db.`lines` SET note = 't2' WHERE region = 'west' AND line_no = 1;
DELETE FROM inc_db.`lines` WHERE region = 'west' AND line_no = 2;
UPDATE inc_db.`lines` SET region = 'moved' WHERE region = 'west' AND line_no = 3;
-- @session gatekeeper
SELECT RELEASE_LOCK('g2');
-- @wait select at_open = :n from inc_db.waiting
-- @settle 1
SELECT RELEASE_LOCK('g1');
-- @settle 3
-- t2 commits after everything was read with the old values
-- @session t2
COMMIT;
-- @session main
UPDATE inc_db.items SET note = 'after t2' WHERE id = 480;
-- @settle 1
