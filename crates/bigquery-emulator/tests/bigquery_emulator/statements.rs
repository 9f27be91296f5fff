//! SQL.

use millstream_bigquery_emulator::Server;
use serde_json::{Value, json};

use crate::world::*;

/// A world with some orders.
async fn orders() -> World {
    let world = World::empty(Server::builder()).await;
    world
        .sql(
            "CREATE TABLE IF NOT EXISTS `p.d.orders` (
               id INT64 NOT NULL OPTIONS(description='key'), amount NUMERIC, tags ARRAY<STRING>,
               addr STRUCT<street STRING, geo STRUCT<lat FLOAT64, lon FLOAT64>>,
               items ARRAY<STRUCT<sku STRING, n INT64>>, created TIMESTAMP, doc JSON, __op STRING,
               PRIMARY KEY (id) NOT ENFORCED)
             PARTITION BY DATE(created) CLUSTER BY id, __op
             OPTIONS (partition_expiration_days=90, labels=[('a', 'b')], max_staleness=INTERVAL 10 MINUTE)",
        )
        .await;
    world
        .sql(
            "INSERT INTO d.orders (id, amount, tags, addr, items, created, doc, __op) VALUES
               (1, NUMERIC '1.50', ['a', 'b'], STRUCT('s', STRUCT(1.5, 2.5)), [STRUCT('x', 1), STRUCT('y', 2)],
                TIMESTAMP '2024-01-02 03:04:05.678+00', JSON '{\"a\": {\"b\": [1, 2]}, \"c\": \"t\"}', 'c'),
               (2, 3, [], NULL, [], TIMESTAMP('2024-01-03'), NULL, 'u')",
        )
        .await;
    world
}

fn text(rows: Vec<Vec<Value>>) -> Vec<String> {
    rows.iter().map(|row| json!(row).to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn queries() {
    let world = orders().await;
    let cases = [
        (
            "SELECT * EXCEPT (doc, items, addr, tags, created) FROM d.orders ORDER BY id",
            r#"["1","1.5","c"] ["2","3","u"]"#,
        ),
        ("SELECT * REPLACE (id + 1 AS id) FROM (SELECT id FROM d.orders) WHERE id = 1", r#"["2"]"#),
        (
            "SELECT addr.geo.lat, tags[OFFSET(0)], tags[SAFE_OFFSET(9)], items[ORDINAL(1)].sku FROM d.orders WHERE ID = 1",
            r#"["1.5","a",null,"x"]"#,
        ),
        (
            "SELECT i.sku, off FROM d.orders AS o, UNNEST(o.items) AS i WITH OFFSET AS off ORDER BY 2",
            r#"["x","0"] ["y","1"]"#,
        ),
        ("SELECT o.id, t FROM d.orders o, o.tags t ORDER BY 2", r#"["1","a"] ["1","b"]"#),
        (
            "SELECT o.id, t FROM d.orders o LEFT JOIN UNNEST(o.tags) AS t ORDER BY 1, 2",
            r#"["1","a"] ["1","b"] ["2",null]"#,
        ),
        ("SELECT id FROM d.orders QUALIFY ROW_NUMBER() OVER (ORDER BY id DESC) = 1", r#"["2"]"#),
        ("SELECT ARRAY_AGG(o ORDER BY o.id DESC LIMIT 1)[OFFSET(0)].id FROM d.orders o", r#"["2"]"#),
        (
            "WITH a AS (SELECT id FROM d.orders), b AS (SELECT * FROM a) SELECT COUNT(*), COUNTIF(id > 1), SUM(id), STRING_AGG(CAST(id AS STRING), '|' ORDER BY id) FROM b",
            r#"["2","1","3","1|2"]"#,
        ),
        (
            "SELECT JSON_VALUE(doc, '$.c'), JSON_VALUE(doc, '$.a'), JSON_VALUE(doc, '$.a.b[1]') FROM d.orders WHERE id = 1",
            r#"["t",null,"2"]"#,
        ),
        (
            "SELECT SAFE_CAST('x' AS INT64), SAFE_CAST('7' AS INT64), IFNULL(NULL, 3), IF(TRUE, 1, 2)",
            r#"[null,"7","3","1"]"#,
        ),
        ("SELECT TO_JSON_STRING(t) FROM (SELECT 1 AS a, 'x' AS b) t", r#"["{\"a\":1,\"b\":\"x\"}"]"#),
        (
            "SELECT TIMESTAMP_MICROS(5), TIMESTAMP_ADD(TIMESTAMP '1970-01-01', INTERVAL 1 HOUR), DATE(TIMESTAMP '2024-01-03 11:00:00')",
            r#"["5","3600000000","2024-01-03"]"#,
        ),
        (
            "SELECT b'\\x00a', r'\\d', 'it\\'s', \"dq\", 7 / 2, DIV(7, 2)",
            r#"["AGE=","\\d","it's","dq","3.5","3"]"#,
        ),
        (
            "SELECT STRUCT(1 AS a, 'b' AS c), [1, 2], ARRAY<STRING>['q']",
            r#"[{"f":[{"v":"1"},{"v":"b"}]},[{"v":"1"},{"v":"2"}],[{"v":"q"}]]"#,
        ),
        (
            "SELECT 1 IN UNNEST([1, 2]), SPLIT('a,b')[OFFSET(1)], REGEXP_EXTRACT('k=v', r'=(.*)')",
            r#"["true","b","v"]"#,
        ),
        ("SELECT x FROM UNNEST([1, 2, 3]) AS x WHERE x > 1 ORDER BY x DESC LIMIT 1", r#"["3"]"#),
        (
            "SELECT data_type FROM d.INFORMATION_SCHEMA.COLUMNS WHERE column_name = 'addr'",
            r#"["STRUCT<street STRING, geo STRUCT<lat FLOAT64, lon FLOAT64>>"]"#,
        ),
        ("SELECT table_name, table_type FROM `p.d.INFORMATION_SCHEMA.TABLES`", r#"["orders","BASE TABLE"]"#),
        ("SELECT 1; SELECT 2", r#"["2"]"#),
    ];
    for (sql, wanted) in cases {
        assert_eq!(text(world.sql(sql).await).join(" "), wanted, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_rows() {
    let world = orders().await;
    let affected = |body: &Value| body["numDmlAffectedRows"].as_str().unwrap_or_default().to_owned();
    let (_, body) = world
        .try_sql("UPDATE `p.d.orders` o SET o.__op = s.v FROM (SELECT 1 AS id, 'z' AS v) s WHERE o.id = s.id")
        .await;
    assert_eq!(affected(&body), "1");
    let merge = "MERGE `p.d.orders` T USING (SELECT 5 AS id, NUMERIC '7' AS amount) S ON T.id = S.id
      WHEN MATCHED THEN UPDATE SET T.amount = S.amount
      WHEN NOT MATCHED BY SOURCE AND T.id = 2 THEN DELETE
      WHEN NOT MATCHED THEN INSERT (id, amount) VALUES (S.id, S.amount)";
    assert_eq!(affected(&world.try_sql(merge).await.1), "2");
    assert_eq!(
        text(world.sql("SELECT id, __op FROM d.orders ORDER BY id").await),
        [r#"["1","z"]"#, r#"["5",null]"#]
    );
    let twice = |condition: &str| {
        format!(
            "MERGE d.orders T USING (SELECT 5 AS id, 1 AS n UNION ALL SELECT 5, 2) S ON T.id = S.id
             WHEN MATCHED {condition} THEN UPDATE SET __op = 'm'"
        )
    };
    let (status, body) = world.try_sql(&twice("")).await;
    let message = "UPDATE/MERGE must match at most one source row for each target row";
    assert_eq!((status, &body["error"]["message"]), (400, &json!(message)));
    assert_eq!(affected(&world.try_sql(&twice("AND S.n = 2")).await.1), "1");
    assert_eq!(affected(&world.try_sql("DELETE d.orders WHERE id = 5").await.1), "1");
    world.sql("TRUNCATE TABLE d.orders").await;
    assert_eq!(world.list("SELECT COUNT(*) FROM d.orders").await, ["0"]);
    assert_eq!(world.try_sql("INSERT INTO d.orders (amount) VALUES (1)").await.0, 400, "id is required");
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions() {
    let world = orders().await;
    let (_, table) = world.call("GET", "/datasets/d/tables/orders", Value::Null).await;
    assert_eq!(
        table["timePartitioning"],
        json!({"type": "DAY", "field": "created", "expirationMs": "7776000000"})
    );
    assert_eq!(table["clustering"]["fields"], json!(["id", "__op"]));
    assert_eq!(table["tableConstraints"]["primaryKey"]["columns"], json!(["id"]));
    assert_eq!((&table["maxStaleness"], &table["labels"]), (&json!("0-0 0 0:10:0"), &json!({"a": "b"})));
    for sql in [
        "ALTER TABLE d.orders ADD COLUMN IF NOT EXISTS note STRING OPTIONS(description='n'), ADD COLUMN n2 INT64",
        "ALTER TABLE d.orders ADD COLUMN IF NOT EXISTS note STRING",
        "ALTER TABLE d.orders ALTER COLUMN n2 SET DATA TYPE NUMERIC",
        "ALTER TABLE d.orders ALTER COLUMN id DROP NOT NULL",
        "ALTER TABLE d.orders SET OPTIONS (max_staleness = INTERVAL '0-0 0 0:5:0' YEAR TO SECOND)",
        "CREATE OR REPLACE VIEW d.latest AS SELECT * EXCEPT (rn) FROM
           (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY created DESC) AS rn FROM `p.d.orders`) WHERE rn = 1",
        "CREATE MATERIALIZED VIEW d.mv OPTIONS (enable_refresh = true) AS SELECT id, COUNT(*) AS n FROM d.orders GROUP BY id",
        "CREATE OR REPLACE TABLE d.copy AS SELECT CAST('1.5' AS BIGNUMERIC) AS c, [STRUCT(1 AS x)] AS b",
        "DROP VIEW IF EXISTS d.nothing",
    ] {
        world.sql(sql).await;
    }
    assert_eq!(world.list("SELECT COUNT(*) FROM d.latest JOIN d.mv USING (id)").await, ["2"]);
    let (_, copy) = world.call("GET", "/datasets/d/tables/copy", Value::Null).await;
    assert_eq!((&copy["schema"]["fields"][0]["type"], &copy["numRows"]), (&json!("BIGNUMERIC"), &json!("1")));
    for (sql, status) in [
        ("ALTER TABLE d.orders ALTER COLUMN n2 SET DATA TYPE INT64", 400),
        ("ALTER TABLE d.orders ADD COLUMN must STRING NOT NULL", 400),
        ("ALTER TABLE d.orders DROP COLUMN id", 400),
        ("CREATE TABLE d.orders (a INT64)", 409),
        ("CREATE TABLE d.x (a NOPE)", 400),
        ("CREATE TABLE nope.x (a INT64)", 404),
        ("DROP TABLE d.latest", 400),
        ("DROP TABLE d.nope", 404),
        ("DROP SCHEMA d", 400),
        ("SELECT nosuch(1)", 400),
        ("SELECT @p", 400),
        ("CALL x()", 400),
    ] {
        let (found, body) = world.try_sql(sql).await;
        assert_eq!(found, status, "{sql}: {body}");
    }
    world.sql("DROP SCHEMA d CASCADE").await;
    assert_eq!(world.call("GET", "/datasets/d", Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_differ_by_case_in_tables_and_not_in_columns() {
    let world = World::empty(Server::builder()).await;
    world.sql("CREATE TABLE d.Orders (Id INT64)").await;
    world.sql("CREATE TABLE d.orders (id INT64)").await;
    world.sql("INSERT INTO d.Orders (ID) VALUES (1)").await;
    assert_eq!(world.list("SELECT Orders.iD FROM `d.Orders`").await, ["1"]);
    assert_eq!(world.list("SELECT COUNT(*) FROM `d`.`orders`").await, ["0"]);
}
