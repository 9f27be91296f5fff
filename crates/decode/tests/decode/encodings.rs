//! Every encoding that connectors are known to write, one value at a time: with its embedded schema, and bare with a
//! hint and the connector's modes.

use std::sync::Arc;

use millstream_core::{Decoded, Type};
use millstream_decode::{
    BinaryMode, ColumnHint, DecimalMode, Modes, NotFinitePolicy, Options, RangePolicy, TableHints, TimeMode,
    debezium,
};

use crate::corpus::{one, show_value};

const SOURCE: &str = r#"{"connector":"postgresql","ts_ms":1,"db":"d","schema":"s","table":"t","lsn":8,"sequence":"[\"7\",\"8\"]"}"#;

fn bare(json: &str) -> String {
    format!(r#"{{"before":null,"after":{{"id":1,"v":{json}}},"source":{SOURCE},"op":"c","ts_ms":2}}"#)
}

/// A value as decoded; of a refusal, its code.
fn shown(item: Decoded) -> String {
    match item {
        Decoded::Event(event) => show_value(event.row.get(1)),
        Decoded::Dead(dead) => format!("dead {}", dead.cause.code),
        other => format!("{other:?}"),
    }
}

fn ty(item: &Decoded) -> Type {
    match item {
        Decoded::Event(event) => event.schema.columns[1].ty.clone(),
        other => panic!("{other:?}"),
    }
}

/// Decodes with `column` as the embedded schema of `v`.
fn embedded(options: Options, column: &str, json: &str) -> Decoded {
    let mut column: serde_json::Value = serde_json::from_str(column).unwrap();
    column["field"] = "v".into();
    let schema = format!(
        r#"{{"type":"struct","fields":[{{"type":"struct","fields":[{{"type":"int32","field":"id"}},{column}],"field":"after"}}]}}"#
    );
    let text = format!(r#"{{"schema":{schema},"payload":{}}}"#, bare(json));
    one(&mut *debezium(Arc::new(options)), None, text.as_bytes())
}

fn of(column: &str, json: &str) -> String {
    shown(embedded(Options::default(), column, json))
}

fn hinted(hint: ColumnHint, modes: Modes, json: &str) -> Decoded {
    let columns = [("v".to_owned(), hint)].into();
    let hints = TableHints { columns, ..TableHints::default() };
    let tables = [("s.t".to_owned(), hints)].into();
    let options = Options { tables, modes, ..Options::default() };
    one(&mut *debezium(Arc::new(options)), None, bare(json).as_bytes())
}

fn with(ty: Type, modes: Modes, json: &str) -> String {
    shown(hinted(ColumnHint::new(ty), modes, json))
}

fn inferred(json: &str) -> (String, Type) {
    let item = one(&mut *debezium(Arc::new(Options::default())), None, bare(json).as_bytes());
    let ty = ty(&item);
    (shown(item), ty)
}

fn named(ty: &str, name: &str) -> String {
    format!(r#"{{"type":"{ty}","optional":true,"name":"{name}"}}"#)
}

fn decimal(scale: i32, precision: u32) -> String {
    format!(
        r#"{{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{{"scale":"{scale}","connect.decimal.precision":"{precision}"}}}}"#
    )
}

#[test]
fn decimals_in_the_precise_mode() {
    let d = decimal(2, 12);
    for (json, value) in [
        (r#""Jws=""#, "99.95d"),
        (r#""ZA==""#, "1.00d"),
        (r#""AMg=""#, "2.00d"),
        (r#""AA==""#, "0.00d"),
        (r#""/w==""#, "-0.01d"),
        (r#""+ho=""#, "-15.10d"),
        (r#""AOjUpQ\/\/""#, "9999999999.99d"),
        // The converter's NUMERIC format.
        ("1.50", "1.50d"),
        ("1.5", "1.50d"),
        ("7", "7.00d"),
        ("1E2", "100.00d"),
        (r#""""#, "dead invalid_value"),
        (r#""A===""#, "dead invalid_value"),
        ("true", "dead wrong_type"),
        ("null", "∅"),
    ] {
        assert_eq!(of(&d, json), value, "{json}");
    }
    // PostgreSQL's numeric(5,-2) comes with a scale of 2046 and all the zeros.
    assert_eq!(of(&decimal(0, 18), r#""AbabsxVLEAA=""#).trim_end_matches('d').len(), 18);
    assert_eq!(
        ty(&embedded(Options::default(), &decimal(5, 3), r#""ew==""#)),
        Type::Decimal { precision: 5, scale: 5 }
    );
    let wide = "9".repeat(28) + "." + &"9".repeat(10);
    assert_eq!(of(&decimal(10, 38), &wide), format!("{wide}D"));
}

#[test]
fn decimals_of_variable_scale() {
    let column = r#"{"type":"struct","name":"io.debezium.data.VariableScaleDecimal","fields":[{"type":"int32","field":"scale"},{"type":"bytes","field":"value"}]}"#;
    assert_eq!(of(column, r#"{"scale":20,"value":"EQfV61tbpNfG"}"#), "3.14159265358979323846D");
    assert_eq!(of(column, r#"{"scale":2,"value":"ew=="}"#), "1.23d");
    assert_eq!(of(column, r#"{"value":"ew==","scale":-3}"#), "123000d");
    assert_eq!(of(column, r#"{"scale":0}"#), "dead wrong_type");
    // A small record must not ask for gigabytes.
    assert_eq!(of(column, r#"{"scale":-2147483648,"value":"ew=="}"#), "dead too_large");
    assert_eq!(of(column, r#"{"scale":2147483647,"value":"ew=="}"#), "dead too_large");
}

#[test]
fn decimals_as_text_and_double() {
    let ty = Type::Decimal { precision: 12, scale: 2 };
    let string = Modes { decimal: DecimalMode::String, ..Modes::default() };
    let double = Modes { decimal: DecimalMode::Double, ..Modes::default() };
    assert_eq!(with(ty.clone(), string, r#""1234.56""#), "1234.56d");
    assert_eq!(with(Type::Numeric, string, r#""1.2300""#), "1.2300d");
    assert_eq!(with(ty.clone(), double, "1234.56"), "1234.56d");
    assert_eq!(with(Type::Numeric, double, "1.0E28"), "10000000000000000000000000000D");
    assert_eq!(with(ty.clone(), double, "1.0E10000000"), "dead too_large");
    assert_eq!(with(ty.clone(), string, r#""12x""#), "dead invalid_value");
    // Digits beyond the declared scale are kept: the column widens.
    assert_eq!(with(ty, string, r#""1.2345""#), "1.2345d");
    // Base64 of which nobody told the scale stays what it is.
    assert_eq!(with(Type::Numeric, Modes::default(), r#""Jws=""#), r#""Jws=""#);
}

#[test]
fn decimals_that_are_not_finite() {
    let ty = Type::Decimal { precision: 4, scale: 1 };
    let modes = Modes { decimal: DecimalMode::String, ..Modes::default() };
    let policy = |not_finite, json: &str| {
        let columns = [("v".to_owned(), ColumnHint::new(ty.clone()))].into();
        let hints = TableHints { columns, ..TableHints::default() };
        let options =
            Options { tables: [("s.t".to_owned(), hints)].into(), modes, not_finite, ..Options::default() };
        shown(one(&mut *debezium(Arc::new(options)), None, bare(json).as_bytes()))
    };
    for nan in [r#""NaN""#, r#""NAN""#] {
        assert_eq!(policy(NotFinitePolicy::Null, nan), "∅");
        assert_eq!(policy(NotFinitePolicy::Clamp, nan), "∅");
        assert_eq!(policy(NotFinitePolicy::DeadLetter, nan), "dead not_finite");
        assert_eq!(policy(NotFinitePolicy::String, nan), r#""NaN""#);
    }
    assert_eq!(policy(NotFinitePolicy::Clamp, r#""POSITIVE_INFINITY""#), "999.9d");
    assert_eq!(policy(NotFinitePolicy::Clamp, r#""-Infinity""#), "-999.9d");
    assert_eq!(policy(NotFinitePolicy::String, r#""NEGATIVE_INFINITY""#), r#""-Infinity""#);
}

#[test]
fn floats_booleans_integers() {
    let float = r#"{"type":"double"}"#;
    for (json, value) in [
        ("3.4028235E38", "3.4028235e38f"),
        ("-0.0", "-0.0f"),
        ("-0", "-0.0f"),
        (r#""NaN""#, "NaNf"),
        (r#""-Infinity""#, "-inff"),
        (r#""x""#, "dead wrong_type"),
    ] {
        assert_eq!(of(float, json), value, "{json}");
    }
    assert_eq!(of(r#"{"type":"int64"}"#, "9223372036854775807"), "9223372036854775807");
    assert_eq!(of(r#"{"type":"int64"}"#, "9223372036854775808"), "dead wrong_type");
    assert_eq!(of(r#"{"type":"int64"}"#, "1.5"), "dead wrong_type");
    assert_eq!(of(r#"{"type":"boolean"}"#, "true"), "true");
    let unsigned = r#"{"type":"int64","parameters":{"__debezium.source.column.type":"BIGINT UNSIGNED"}}"#;
    assert_eq!(of(unsigned, "-1"), "18446744073709551615D");
    assert_eq!(of(unsigned, "5"), "5d");
    assert_eq!(with(Type::Bool, Modes::default(), "1"), "true");
    assert_eq!(with(Type::Int64, Modes::default(), r#""12""#), "12");
}

#[test]
fn dates_and_times() {
    let debezium =
        |ty: &str, name: &str, json: &str| of(&named(ty, &format!("io.debezium.time.{name}")), json);
    let connect =
        |ty, name: &str, json| of(&named(ty, &format!("org.apache.kafka.connect.data.{name}")), json);
    assert_eq!(debezium("int32", "Date", "19782"), "2024-02-29");
    assert_eq!(connect("int32", "Date", "-1"), "1969-12-31");
    assert_eq!(debezium("string", "IsoDate", r#""2024-02-29Z""#), "2024-02-29");
    assert_eq!(debezium("int64", "MicroTime", "86400000000"), "86400000000µs");
    assert_eq!(debezium("int32", "Time", "47655678"), "47655678000µs");
    assert_eq!(debezium("int64", "NanoTime", "47655678901000"), "47655678901µs");
    assert_eq!(connect("int32", "Time", "47655678"), "47655678000µs");
    assert_eq!(debezium("string", "IsoTime", r#""13:14:15.678901Z""#), "47655678901µs");
    assert_eq!(debezium("string", "ZonedTime", r#""11:14:15.678901Z""#), r#""11:14:15.678901Z""#);
    assert_eq!(debezium("int64", "Timestamp", "1709212455678"), "2024-02-29T13:14:15.678000");
    assert_eq!(debezium("int64", "MicroTimestamp", "1709212455678901"), "2024-02-29T13:14:15.678901");
    assert_eq!(debezium("int64", "NanoTimestamp", "1709212455678901000"), "2024-02-29T13:14:15.678901");
    assert_eq!(connect("int64", "Timestamp", "-1"), "1969-12-31T23:59:59.999000");
    assert_eq!(
        debezium("string", "IsoTimestamp", r#""2024-02-29T13:14:15.678901Z""#),
        "2024-02-29T13:14:15.678901"
    );
    for (text, value) in [
        ("2024-02-29T11:14:15.678901Z", "2024-02-29T11:14:15.678901Z"),
        ("2024-02-29T13:14:15Z", "2024-02-29T13:14:15.000000Z"),
        ("2024-02-29T13:14:15.1+02:00", "2024-02-29T11:14:15.100000Z"),
        ("9999-12-31T23:59:59.999999-00:01", "∅"),
        ("+10000-01-01T00:00:00Z", "∅"),
        ("-0043-03-15T00:00:00Z", "∅"),
        ("infinity", "∅"),
        ("2024-02-30T00:00:00Z", "dead invalid_value"),
        ("2024-02-29T13:14:15Zx", "dead invalid_value"),
    ] {
        assert_eq!(debezium("string", "ZonedTimestamp", &format!("{text:?}")), value, "{text}");
    }
    assert_eq!(debezium("int64", "MicroDuration", "2629800000000"), "2629800000000");
    assert_eq!(debezium("string", "Interval", r#""P1Y2M3DT4H5M6.789012S""#), r#""P1Y2M3DT4H5M6.789012S""#);
    assert_eq!(debezium("int32", "Year", "2024"), "2024");
}

/// PostgreSQL's infinities and far dates, as snapshot and stream write them, under each policy.
#[test]
fn dates_out_of_range_follow_the_policy() {
    let high = ("9999-12-31", "9999-12-31T23:59:59.999999");
    let low = ("0001-01-01", "0001-01-01T00:00:00.000000");
    for (ty, name, json, clamped) in [
        ("int32", "Date", "-622191234", high.0),
        ("int32", "Date", "-2147472692", high.0),
        ("int32", "Date", "-625821272", low.0),
        ("int32", "Date", "-2147472691", low.0),
        ("int32", "Date", "-2440550", low.0),
        ("int32", "Date", "2932897", high.0),
        ("int64", "MicroTimestamp", "9223372036825200000", high.1),
        ("int64", "MicroTimestamp", "-9223372036832400000", low.1),
        ("int64", "Timestamp", "9223372036825200", high.1),
        ("int64", "Timestamp", "-9223372036832400", low.1),
        // The year 294276 overflows in the connector.
        ("int64", "MicroTimestamp", "-9223372036853775810", high.1),
        ("string", "ZonedTimestamp", r#""infinity""#, "9999-12-31T23:59:59.999999Z"),
        ("string", "ZonedTimestamp", r#""-infinity""#, "0001-01-01T00:00:00.000000Z"),
        ("string", "ZonedTimestamp", r#""+292269055-12-02T23:00:00.000000Z""#, "0001-01-01T00:00:00.000000Z"),
    ] {
        let column = named(ty, &format!("io.debezium.time.{name}"));
        let policy =
            |out_of_range| shown(embedded(Options { out_of_range, ..Options::default() }, &column, json));
        assert_eq!(policy(RangePolicy::Null), "∅", "{name} {json}");
        assert_eq!(policy(RangePolicy::Clamp), clamped, "{name} {json}");
        assert_eq!(policy(RangePolicy::DeadLetter), "dead out_of_range", "{name} {json}");
    }
}

/// Without a schema, an integer for a timestamp is told by the column's precision, else by its magnitude.
#[test]
fn bare_times_by_mode_precision_and_magnitude() {
    let at = |fraction, time, json| {
        let hint = ColumnHint { fraction, ..ColumnHint::new(Type::DateTime) };
        let item = hinted(hint, Modes { time, ..Modes::default() }, json);
        let guessed = matches!(&item, Decoded::Event(e) if e.schema.columns[1].guessed);
        (shown(item), guessed)
    };
    let value = |fraction: &str| format!("2024-02-29T13:14:15.{fraction}");
    assert_eq!(at(Some(3), TimeMode::Adaptive, "1709212455678"), (value("678000"), false));
    assert_eq!(at(Some(6), TimeMode::Adaptive, "1709212455678901"), (value("678901"), false));
    assert_eq!(at(None, TimeMode::Adaptive, "1709212455678"), (value("678000"), true));
    assert_eq!(at(None, TimeMode::Adaptive, "1709212455678901"), (value("678901"), true));
    assert_eq!(at(None, TimeMode::Connect, "1709212455678"), (value("678000"), false));
    assert_eq!(at(None, TimeMode::Nanoseconds, "1709212455678901000"), (value("678901"), false));
    assert_eq!(at(None, TimeMode::IsoString, r#""2024-02-29T13:14:15.678901Z""#), (value("678901"), false));
    let time = |time, json| with(Type::Time, Modes { time, ..Modes::default() }, json);
    assert_eq!(time(TimeMode::Adaptive, "47655678"), "47655678000µs");
    assert_eq!(time(TimeMode::Adaptive, "47655678901"), "47655678901µs");
    assert_eq!(time(TimeMode::AdaptiveTimeMicroseconds, "47655678"), "47655678µs");
}

#[test]
fn bytes_and_bits() {
    let binary = |binary| Modes { binary, ..Modes::default() };
    assert_eq!(of(r#"{"type":"bytes"}"#, r#""AP8Qqw==""#), "x00ff10ab");
    assert_eq!(of(r#"{"type":"bytes"}"#, r#""""#), "x");
    assert_eq!(of(r#"{"type":"bytes"}"#, r#""*""#), "dead invalid_value");
    assert_eq!(with(Type::Bytes, binary(BinaryMode::Base64UrlSafe), r#""_w==""#), "xff");
    assert_eq!(with(Type::Bytes, binary(BinaryMode::Hex), r#""00ff10ab""#), "x00ff10ab");
    assert_eq!(with(Type::Bytes, binary(BinaryMode::Hex), r#""00f""#), "dead invalid_value");
    let bits = |n: u32| {
        format!(r#"{{"type":"bytes","name":"io.debezium.data.Bits","parameters":{{"length":"{n}"}}}}"#)
    };
    assert_eq!(of(&bits(8), r#""pQ==""#), "xa5");
    // PostgreSQL drops zero bytes, MySQL does not: both are the same bits.
    assert_eq!(of(&bits(8), r#""""#), "x00");
    assert_eq!(of(&bits(8), r#""AA==""#), "x00");
    assert_eq!(of(&bits(64), r#""AQAAAAAAAIA=""#), "x8000000000000001");
    assert_eq!(of(&bits(20), r#""FQ==""#), "x000015");
}

#[test]
fn json_and_nested_values() {
    let json = named("string", "io.debezium.data.Json");
    assert_eq!(of(&json, r#""{\"a\": [1.0, 2.50, null]}""#), r#"json "{\"a\": [1.0, 2.50, null]}""#);
    assert_eq!(of(&json, r#""{\"a\":""#), "dead invalid_value");
    let map = r#"{"type":"map","keys":{"type":"string"},"values":{"type":"string"}}"#;
    assert_eq!(of(map, r#"{"k1":"v1","k 2":null}"#), r#"json "{\"k1\":\"v1\",\"k 2\":null}""#);
    let point = r#"{"type":"struct","name":"io.debezium.data.geometry.Point","fields":[{"type":"double","field":"x"},{"type":"double","field":"y"},{"type":"bytes","field":"wkb"},{"type":"int32","field":"srid"}]}"#;
    assert_eq!(of(point, r#"{"x":1.5,"y":-2.25,"wkb":"AQE=","srid":null}"#), "{1.5f, -2.25f, x0101, ∅}");
    let list = r#"{"type":"array","items":{"type":"int32"}}"#;
    assert_eq!(of(list, "[1, null, 3]"), "[1, ∅, 3]");
    assert_eq!(of(list, "[ ]"), "[]");
    assert_eq!(of(list, r#"["x"]"#), "dead wrong_type");
    let decimals = format!(r#"{{"type":"array","items":{}}}"#, decimal(2, 10));
    assert_eq!(of(&decimals, r#"["bg==",null,"/tQ="]"#), "[1.10d, ∅, -3.00d]");
    let vector = r#"{"type":"array","name":"io.debezium.data.FloatVector","items":{"type":"float"}}"#;
    assert_eq!(of(vector, "[1.0,2.5,-3.0]"), "[1.0f, 2.5f, -3.0f]");
    assert_eq!(of(&named("string", "io.debezium.data.EnumSet"), r#""x,z""#), r#""x,z""#);
}

#[test]
fn types_inferred_from_values() {
    for (json, value, ty) in [
        ("null", "∅", Type::Null),
        ("true", "true", Type::Bool),
        ("12", "12", Type::Int64),
        ("9223372036854775808", "9223372036854775808D", Type::Numeric),
        ("26.18", "26.18f", Type::Float64),
        ("1.5E300", "1.5e300f", Type::Float64),
        ("0.1234567890123456789", "0.1234567890123456789D", Type::Numeric),
        (r#""MTIzNA==""#, r#""MTIzNA==""#, Type::Text),
        (r#""a\u00fc\n""#, r#""aü\n""#, Type::Text),
        (r#"{"a": 1.50}"#, r#"json "{\"a\": 1.50}""#, Type::Json),
        ("[1,2]", r#"json "[1,2]""#, Type::Json),
        (r#""__debezium_unavailable_value""#, "UNCHANGED", Type::Null),
    ] {
        assert_eq!(inferred(json), (value.to_owned(), ty), "{json}");
    }
}

/// A column widens from value to value and never narrows.
#[test]
fn inferred_columns_widen() {
    let mut decoder = debezium(Arc::new(Options::default()));
    for (json, value, expected) in [
        ("null", "∅", Type::Null),
        ("7", "7", Type::Int64),
        ("9223372036854775808", "9223372036854775808D", Type::Numeric),
        ("8", "8d", Type::Numeric),
        ("2.50", "2.50d", Type::Numeric),
        ("null", "∅", Type::Numeric),
        (r#""x""#, r#""x""#, Type::Text),
        ("1.10", r#""1.10""#, Type::Text),
        ("[1, 2]", r#""[1, 2]""#, Type::Text),
    ] {
        let item = one(&mut *decoder, None, bare(json).as_bytes());
        assert_eq!(ty(&item), expected, "{json}");
        assert_eq!(shown(item), value, "{json}");
    }
}

/// Unchanged large values, in the form that each type gives the placeholder.
#[test]
fn placeholders_are_unchanged_values() {
    let text = "__debezium_unavailable_value";
    let codes: Vec<_> = text.bytes().map(|b| b.to_string()).collect();
    let codes = format!("[{}]", codes.join(","));
    let uuid = r#"["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]"#;
    let quoted = format!("{text:?}");
    for (column, json) in [
        (r#"{"type":"string"}"#.to_owned(), quoted.clone()),
        (named("string", "io.debezium.data.Json"), quoted.clone()),
        (named("string", "io.debezium.data.Json"), format!(r#""{{\"{text}\":\"{text}\"}}""#)),
        (r#"{"type":"map"}"#.to_owned(), format!(r#"{{"{text}":"{text}"}}"#)),
        (r#"{"type":"bytes"}"#.to_owned(), r#""X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==""#.to_owned()),
        (r#"{"type":"array","items":{"type":"string"}}"#.to_owned(), format!("[{quoted}]")),
        (r#"{"type":"array","items":{"type":"int32"}}"#.to_owned(), codes.clone()),
        (r#"{"type":"array","items":{"type":"int64"}}"#.to_owned(), codes.clone()),
        (r#"{"type":"array","items":{"type":"string"}}"#.to_owned(), uuid.to_owned()),
    ] {
        assert_eq!(of(&column, &json), "UNCHANGED", "{column}");
        assert_eq!(inferred(&json).0, "UNCHANGED", "{json}");
    }
    assert_eq!(
        of(r#"{"type":"array","items":{"type":"string"}}"#, &format!("[{quoted},null]")),
        format!("[{quoted}, ∅]")
    );
    let full = TableHints { full_identity: true, ..TableHints::default() };
    let options = Options { tables: [("s.t".to_owned(), full)].into(), ..Options::default() };
    assert_eq!(shown(embedded(options, r#"{"type":"string"}"#, &quoted)), quoted);
}

/// MySQL's times go beyond a day; the column becomes text from the first of them on.
#[test]
fn mysql_times_beyond_a_day_become_text() {
    let envelope = |v: i64| {
        let source =
            r#"{"connector":"mysql","ts_ms":1,"db":"d","table":"t","file":"binlog.000003","pos":4,"row":0}"#;
        let schema = r#"{"type":"struct","fields":[{"type":"struct","fields":[{"type":"int32","field":"id"},{"type":"int64","name":"io.debezium.time.MicroTime","field":"v"}],"field":"after"}]}"#;
        format!(
            r#"{{"schema":{schema},"payload":{{"before":null,"after":{{"id":1,"v":{v}}},"source":{source},"op":"c","ts_ms":2}}}}"#
        )
    };
    let mut decoder = debezium(Arc::new(Options::default()));
    let mut next = |v| shown(one(&mut *decoder, None, envelope(v).as_bytes()));
    assert_eq!(next(1), "1µs");
    assert_eq!(next(-3_020_399_000_000), r#""-838:59:59""#);
    assert_eq!(next(47_655_678_901), r#""13:14:15.678901""#);
}
