//! Functions of GoogleSQL in DuckDB's words. What is in none of the lists is an error, since a function of the same name
//! may do something else.

use crate::failure::Failure;

/// Functions that both have under the same name and that do the same.
const SAME: &str = "ABS ACOS ANY_VALUE ARRAY_TO_STRING ASIN ATAN ATAN2 AVG BIT_COUNT CEIL CEILING CHR COALESCE CORR COS \
    COUNT COVAR_POP COVAR_SAMP CUME_DIST DENSE_RANK ENDS_WITH EXP FIRST_VALUE FLOOR GREATEST IFNULL INSTR LAG \
    LAST_VALUE LEAD LEAST LEFT LN LOWER LPAD LTRIM MAX MAX_BY MIN MIN_BY MOD NTH_VALUE NTILE NULLIF PERCENT_RANK POW POWER \
    RANK REPEAT REPLACE REVERSE RIGHT ROUND ROW_NUMBER RPAD RTRIM SIGN SIN SQRT STARTS_WITH STDDEV STDDEV_POP \
    STDDEV_SAMP STRING_AGG STRPOS SUBSTR SUBSTRING SUM TAN TRANSLATE TRIM TRUNC UNICODE UPPER VAR_POP VAR_SAMP VARIANCE \
    BIT_AND BIT_OR BIT_XOR SOUNDEX EDIT_DISTANCE ASCII ARRAY_AGG ARRAY";

/// Those that only have another name; they may be aggregates or have a window.
const RENAMED: &[(&str, &str)] = &[
    ("APPROX_COUNT_DISTINCT", "approx_count_distinct"),
    ("ARRAY_CONCAT", "list_concat"),
    ("ARRAY_REVERSE", "list_reverse"),
    ("CHARACTER_LENGTH", "length"),
    ("CHAR_LENGTH", "length"),
    ("COUNTIF", "count_if"),
    ("GENERATE_ARRAY", "generate_series"),
    ("LOGICAL_AND", "bool_and"),
    ("LOGICAL_OR", "bool_or"),
    ("TO_JSON", "to_json"),
    ("ARRAY_CONCAT_AGG", "flatten_list"),
];

/// What becomes of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// The call stays, under this name.
    Name(String),
    /// It becomes this text.
    Text(String),
}

/// Moments that depend on the emulator's clock, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now(pub(crate) i64);

fn unquoted(text: &str) -> String {
    text.trim_matches('"').to_ascii_uppercase()
}

/// A unit of time in DuckDB's words.
fn unit(text: &str) -> Result<&'static str, Failure> {
    Ok(match unquoted(text).as_str() {
        "MICROSECOND" => "microsecond",
        "MILLISECOND" => "millisecond",
        "SECOND" => "second",
        "MINUTE" => "minute",
        "HOUR" => "hour",
        "DAY" => "day",
        "WEEK" | "ISOWEEK" => "week",
        "MONTH" => "month",
        "QUARTER" => "quarter",
        "YEAR" | "ISOYEAR" => "year",
        other => return Err(Failure::query(format!("A valid date part name is required but found {other}"))),
    })
}

/// A format of strftime in DuckDB's words.
fn format(text: &str) -> String {
    let replaced = [
        ("%F", "%Y-%m-%d"),
        ("%T", "%H:%M:%S"),
        ("%R", "%H:%M"),
        ("%D", "%m/%d/%y"),
        ("%E6S", "%S.%f"),
        ("%E*S", "%S.%f"),
        ("%E3S", "%S.%g"),
        ("%Ez", "+00:00"),
        ("%E4Y", "%Y"),
        ("%e", "%-d"),
        ("%k", "%-H"),
    ];
    replaced.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn truncated(value: &str, part: &str, date: bool) -> Result<String, Failure> {
    let unit = unit(part)?;
    let text = match unquoted(part).as_str() {
        // BigQuery's weeks begin on Sunday, DuckDB's on Monday.
        "WEEK" => format!("(date_trunc('week', {value} + INTERVAL 1 DAY) - INTERVAL 1 DAY)"),
        "ISOYEAR" => return Err(Failure::unsupported("truncation to ISOYEAR")),
        _ => format!("date_trunc('{unit}', {value})"),
    };
    Ok(if date { format!("CAST({text} AS DATE)") } else { text })
}

/// A call of a function with these arguments, which are DuckDB's already.
pub(crate) fn rewrite(name: &str, args: &[String], now: Now) -> Result<Rewrite, Failure> {
    let upper = name.to_ascii_uppercase();
    if SAME.split_whitespace().any(|same| same == upper) {
        return Ok(Rewrite::Name(upper.to_ascii_lowercase()));
    }
    if let Some((_, other)) = RENAMED.iter().find(|(from, _)| *from == upper) {
        return Ok(Rewrite::Name((*other).to_owned()));
    }
    let wrong = || {
        Failure::query(format!("No matching signature for function {upper} with {} arguments", args.len()))
    };
    let a = |i: usize| args.get(i).map(String::as_str).ok_or_else(wrong);
    let most = |n: usize| if args.len() > n { Err(wrong()) } else { Ok(()) };
    let text = match upper.as_str() {
        "CURRENT_TIMESTAMP" => format!("make_timestamptz({})", now.0),
        "CURRENT_DATETIME" => format!("make_timestamp({})", now.0),
        "CURRENT_DATE" => format!("CAST(make_timestamp({}) AS DATE)", now.0),
        "CURRENT_TIME" => format!("CAST(make_timestamp({}) AS TIME)", now.0),
        "IF" => format!("CASE WHEN {} THEN {} ELSE {} END", a(0)?, a(1)?, a(2)?),
        "CONCAT" => format!("({})", args.iter().map(|a| format!("({a})")).collect::<Vec<_>>().join(" || ")),
        "SAFE_DIVIDE" => format!("(CAST({} AS DOUBLE) / nullif({}, 0))", a(0)?, a(1)?),
        "IEEE_DIVIDE" => format!("(CAST({} AS DOUBLE) / {})", a(0)?, a(1)?),
        "DIV" => format!("(({}) // ({}))", a(0)?, a(1)?),
        "LOG" if args.len() == 1 => format!("ln({})", a(0)?),
        "LOG10" => format!("log10({})", a(0)?),
        "IS_NAN" => format!("isnan({})", a(0)?),
        "IS_INF" => format!("isinf({})", a(0)?),
        "RAND" => "random()".to_owned(),
        "GENERATE_UUID" => "CAST(uuid() AS VARCHAR)".to_owned(),
        "LENGTH" => format!(
            "CASE WHEN typeof({0}) = 'BLOB' THEN octet_length(CAST({0} AS BLOB)) ELSE length(CAST({0} AS VARCHAR)) END",
            a(0)?
        ),
        "BYTE_LENGTH" | "OCTET_LENGTH" => format!(
            "CASE WHEN typeof({0}) = 'BLOB' THEN octet_length(CAST({0} AS BLOB)) ELSE strlen(CAST({0} AS VARCHAR)) END",
            a(0)?
        ),
        "SPLIT" => format!("string_split({}, {})", a(0)?, args.get(1).map_or("','", String::as_str)),
        "REGEXP_CONTAINS" => format!("regexp_matches({}, {})", a(0)?, a(1)?),
        "REGEXP_EXTRACT" => {
            most(2)?;
            let group = usize::from(a(1)?.replace("\\(", "").replace("(?:", "").contains('('));
            format!(
                "CASE WHEN regexp_matches({0}, {1}) THEN regexp_extract({0}, {1}, {group}) END",
                a(0)?,
                a(1)?
            )
        }
        "REGEXP_EXTRACT_ALL" => {
            let group = usize::from(a(1)?.replace("\\(", "").replace("(?:", "").contains('('));
            format!("regexp_extract_all({}, {}, {group})", a(0)?, a(1)?)
        }
        "REGEXP_REPLACE" => format!("regexp_replace({}, {}, {}, 'g')", a(0)?, a(1)?, a(2)?),
        "TO_HEX" => format!("lower(hex({}))", a(0)?),
        "FROM_HEX" => format!("unhex({})", a(0)?),
        "TO_BASE64" => format!("to_base64({})", a(0)?),
        "FROM_BASE64" => format!("from_base64({})", a(0)?),
        "MD5" => format!("unhex(md5({}))", a(0)?),
        "SHA1" => format!("unhex(sha1({}))", a(0)?),
        "SHA256" => format!("unhex(sha256({}))", a(0)?),
        "SAFE_CONVERT_BYTES_TO_STRING" => format!("TRY(decode({}))", a(0)?),
        "FORMAT" => format!("printf({})", args.join(", ")),
        "ARRAY_LENGTH" => format!("CAST(len({}) AS BIGINT)", a(0)?),
        "OFFSET" | "SAFE_OFFSET" => format!("(({}) + 1)", a(0)?),
        "ORDINAL" | "SAFE_ORDINAL" => format!("({})", a(0)?),
        "TO_JSON_STRING" => format!("COALESCE(CAST(to_json({}) AS VARCHAR), 'null')", a(0)?),
        "PARSE_JSON" => format!("CAST({} AS JSON)", a(0)?),
        "JSON_VALUE" | "JSON_EXTRACT_SCALAR" => {
            let path = args.get(1).map_or("'$'", String::as_str);
            format!(
                "CASE WHEN json_type({0}, {path}) NOT IN ('OBJECT', 'ARRAY') THEN json_extract_string({0}, {path}) END",
                a(0)?
            )
        }
        "JSON_QUERY" | "JSON_EXTRACT" => {
            format!("json_extract({}, {})", a(0)?, args.get(1).map_or("'$'", String::as_str))
        }
        "JSON_QUERY_ARRAY" | "JSON_EXTRACT_ARRAY" => {
            format!("CAST(json_extract({}, {}) AS JSON[])", a(0)?, args.get(1).map_or("'$'", String::as_str))
        }
        "JSON_VALUE_ARRAY" | "JSON_EXTRACT_STRING_ARRAY" => {
            format!(
                "CAST(json_extract({}, {}) AS VARCHAR[])",
                a(0)?,
                args.get(1).map_or("'$'", String::as_str)
            )
        }
        "JSON_TYPE" => format!("lower(json_type({}))", a(0)?),
        "STRING" => format!("json_extract_string(to_json({}), '$')", a(0)?),
        "INT64" => format!("CAST({} AS BIGINT)", a(0)?),
        "FLOAT64" => format!("CAST({} AS DOUBLE)", a(0)?),
        "BOOL" => format!("CAST({} AS BOOLEAN)", a(0)?),
        _ => return time(&upper, args, &wrong).map(Rewrite::Text),
    };
    Ok(Rewrite::Text(text))
}

/// Functions of dates and times.
fn time(upper: &str, args: &[String], wrong: &dyn Fn() -> Failure) -> Result<String, Failure> {
    let a = |i: usize| args.get(i).map(String::as_str).ok_or_else(wrong);
    let zone = |i: usize| match args.get(i).map(|zone| unquoted(zone.trim_matches('\''))) {
        None => Ok(()),
        Some(utc) if matches!(utc.as_str(), "UTC" | "ETC/UTC" | "+00:00" | "+00" | "+0") => Ok(()),
        Some(other) => Err(Failure::unsupported(format!("the time zone {other}"))),
    };
    Ok(match upper {
        "TIMESTAMP" => {
            zone(1)?;
            format!("CAST({} AS TIMESTAMPTZ)", a(0)?)
        }
        "DATETIME" if args.len() == 6 => format!("make_timestamp({})", args.join(", ")),
        "DATETIME" if args.len() == 2 && args[1].starts_with('\'') => {
            zone(1)?;
            format!("CAST({} AS TIMESTAMP)", a(0)?)
        }
        "DATETIME" if args.len() == 2 => format!("(CAST({} AS DATE) + CAST({} AS TIME))", a(0)?, a(1)?),
        "DATETIME" => format!("CAST({} AS TIMESTAMP)", a(0)?),
        "DATE" if args.len() == 3 => format!("make_date({})", args.join(", ")),
        "DATE" => {
            zone(1)?;
            format!("CAST({} AS DATE)", a(0)?)
        }
        "TIME" if args.len() == 3 => format!("make_time({})", args.join(", ")),
        "TIME" => format!("CAST({} AS TIME)", a(0)?),
        "TIMESTAMP_MICROS" => format!("make_timestamptz(CAST({} AS BIGINT))", a(0)?),
        "TIMESTAMP_MILLIS" => format!("make_timestamptz(CAST({} AS BIGINT) * 1000)", a(0)?),
        "TIMESTAMP_SECONDS" => format!("make_timestamptz(CAST({} AS BIGINT) * 1000000)", a(0)?),
        "UNIX_MICROS" => format!("epoch_us({})", a(0)?),
        "UNIX_MILLIS" => format!("CAST(floor(epoch_us({}) / 1000) AS BIGINT)", a(0)?),
        "UNIX_SECONDS" => format!("CAST(floor(epoch_us({}) / 1000000) AS BIGINT)", a(0)?),
        "UNIX_DATE" => format!("date_diff('day', DATE '1970-01-01', {})", a(0)?),
        "DATE_FROM_UNIX_DATE" => format!("(DATE '1970-01-01' + CAST({} AS INTEGER))", a(0)?),
        "LAST_DAY" => format!("last_day({})", a(0)?),
        "TIMESTAMP_TRUNC" => {
            zone(2)?;
            truncated(a(0)?, a(1)?, false)?
        }
        "DATETIME_TRUNC" | "TIME_TRUNC" => truncated(a(0)?, a(1)?, false)?,
        "DATE_TRUNC" => truncated(a(0)?, a(1)?, true)?,
        "TIMESTAMP_DIFF" | "TIME_DIFF" => format!("date_sub('{}', {}, {})", unit(a(2)?)?, a(1)?, a(0)?),
        "DATE_DIFF" | "DATETIME_DIFF" => {
            let (from, to) = (a(1)?, a(0)?);
            match unquoted(a(2)?).as_str() {
                "WEEK" => format!("date_diff('week', {from} + INTERVAL 1 DAY, {to} + INTERVAL 1 DAY)"),
                _ => format!("date_diff('{}', {from}, {to})", unit(a(2)?)?),
            }
        }
        "TIMESTAMP_ADD" | "DATETIME_ADD" | "TIME_ADD" => format!("({} + {})", a(0)?, a(1)?),
        "TIMESTAMP_SUB" | "DATETIME_SUB" | "TIME_SUB" => format!("({} - {})", a(0)?, a(1)?),
        "DATE_ADD" => format!("CAST({} + {} AS DATE)", a(0)?, a(1)?),
        "DATE_SUB" => format!("CAST({} - {} AS DATE)", a(0)?, a(1)?),
        "FORMAT_TIMESTAMP" | "FORMAT_DATE" | "FORMAT_DATETIME" => {
            zone(2)?;
            format!("strftime({}, {})", a(1)?, format(a(0)?))
        }
        "FORMAT_TIME" => format!("strftime(DATE '1970-01-01' + {}, {})", a(1)?, format(a(0)?)),
        "PARSE_TIMESTAMP" => {
            zone(2)?;
            format!("CAST(strptime({}, {}) AS TIMESTAMPTZ)", a(1)?, format(a(0)?))
        }
        "PARSE_DATE" => format!("CAST(strptime({}, {}) AS DATE)", a(1)?, format(a(0)?)),
        "PARSE_DATETIME" => format!("CAST(strptime({}, {}) AS TIMESTAMP)", a(1)?, format(a(0)?)),
        _ => return Err(Failure::query(format!("Function not found: {upper}"))),
    })
}
