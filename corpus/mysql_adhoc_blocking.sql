-- MySQL: ad-hoc blocking snapshot after an initial one; the changes of adhoc_blocking.sql, without its table lock.
-- @phase setup
DROP DATABASE IF EXISTS block_db;
CREATE USER IF NOT EXISTS dbz@'%' IDENTIFIED WITH caching_sha2_password BY 'dbz';
GRANT ALL PRIVILEGES ON *.* TO dbz@'%';
CREATE DATABASE block_db CHARACTER SET utf8mb4;
USE block_db;
CREATE TABLE accounts (id INT PRIMARY KEY, owner VARCHAR(40) NOT NULL, balance DECIMAL(12,2) NOT NULL, note VARCHAR(60));
INSERT INTO accounts WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 20) SELECT i, CONCAT('Owner ', i), 100.00, 'as loaded' FROM s;
CREATE TABLE entries (account INT, entry INT, note VARCHAR(60), PRIMARY KEY (account, entry));
INSERT INTO entries WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 4) SELECT a, i, 'as loaded' FROM s, (SELECT 1 a UNION ALL SELECT 2 UNION ALL SELECT 3) x;
CREATE TABLE dbz_signal (id VARCHAR(64) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048));
CREATE TABLE dbz_signal_s (id VARCHAR(64) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048));

-- @phase stream
UPDATE block_db.accounts SET note = 'before' WHERE id IN (1, 15);
DELETE FROM block_db.accounts WHERE id = 20;
-- @session t1
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN;
UPDATE block_db.accounts SET balance = 1.00, note = 't1' WHERE id = 3;
DELETE FROM block_db.accounts WHERE id = 4;
UPDATE block_db.accounts SET id = 25, note = 't1 moved 5' WHERE id = 5;
INSERT INTO block_db.accounts VALUES (21, 'Owner 21', 1.00, 't1');
-- @session t2
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN;
UPDATE block_db.accounts SET balance = 2.00, note = 't2' WHERE id IN (11, 12);
DELETE FROM block_db.accounts WHERE id = 13;
-- @session main
UPDATE block_db.accounts SET note = 'before, t1 and t2 open' WHERE id = 15;
-- @settle 1
-- @session locker
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN;
UPDATE block_db.entries SET note = 'locker' WHERE account = 1 AND entry = 1;
DELETE FROM block_db.entries WHERE account = 1 AND entry = 2;
-- @session main
BEGIN;
INSERT INTO block_db.dbz_signal VALUES ('blocking-1', 'execute-snapshot', '{"data-collections": ["block_db.accounts", "block_db.entries"], "type": "blocking"}');
INSERT INTO block_db.dbz_signal_s VALUES ('blocking-1', 'execute-snapshot', '{"data-collections": ["block_db.accounts", "block_db.entries"], "type": "blocking"}');
COMMIT;
UPDATE block_db.accounts SET note = 'right after the signal, 1st' WHERE id IN (1, 2);
UPDATE block_db.accounts SET note = 'right after the signal, 2nd' WHERE id = 1;
DELETE FROM block_db.accounts WHERE id = 6;
UPDATE block_db.accounts SET id = 27, note = 'moved 7 right after the signal' WHERE id = 7;
INSERT INTO block_db.accounts VALUES (22, 'Owner 22', 22, 'right after the signal'), (23, 'Owner 23', 23, 'right after the signal');
UPDATE block_db.accounts SET note = 'right after the signal, changed' WHERE id = 22;
DELETE FROM block_db.accounts WHERE id = 23;
-- @sleep 0.4
UPDATE block_db.accounts SET note = 'while it reads' WHERE id IN (1, 8);
DELETE FROM block_db.accounts WHERE id = 9;
INSERT INTO block_db.accounts VALUES (24, 'Owner 24', 24, 'while it reads');
-- @session t3
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN;
UPDATE block_db.accounts SET note = 't3, begun while it reads' WHERE id = 10;
-- @session locker
UPDATE block_db.entries SET note = 'while it reads' WHERE account = 1 AND entry = 3;
COMMIT;
-- @settle 4
-- t1: the first transaction that commits after the snapshot's end; all LSNs but the last below those of the reads
-- @session t1
UPDATE block_db.accounts SET note = 't1 after the snapshot' WHERE id = 14;
COMMIT;
-- @session main
UPDATE block_db.accounts SET note = 'after' WHERE id IN (3, 16);
-- @session t2
COMMIT;
-- @session t3
COMMIT;
-- @settle 2
-- once more, nothing but t4 between the signal and the end
-- @session t4
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN;
UPDATE block_db.entries SET note = 't4' WHERE account = 2;
DELETE FROM block_db.entries WHERE account = 3 AND entry = 1;
-- @session main
BEGIN;
INSERT INTO block_db.dbz_signal VALUES ('blocking-2', 'execute-snapshot', '{"data-collections": ["block_db.entries"], "type": "blocking"}');
INSERT INTO block_db.dbz_signal_s VALUES ('blocking-2', 'execute-snapshot', '{"data-collections": ["block_db.entries"], "type": "blocking"}');
COMMIT;
-- @settle 4
-- @session t4
COMMIT;
-- @settle 2
-- @session main
UPDATE block_db.entries SET note = 'the end' WHERE account = 3;
