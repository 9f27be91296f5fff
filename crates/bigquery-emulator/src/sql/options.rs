//! `OPTIONS (…)` and `PARTITION BY` of GoogleSQL, as the REST API's resources have them.

use serde_json::{Map, Value, json};
use sqlparser::ast::{Expr, Interval, UnaryOperator, Value as Literal};
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::Token;

use super::syntax;
use crate::failure::Failure;

/// An option's name and value.
pub(crate) type Given = (String, Value);

/// Reads `OPTIONS (name = value, …)` if it is there.
pub(crate) fn read(parser: &mut Parser<'_>) -> Result<Vec<Given>, Failure> {
    if !parser.parse_keyword(Keyword::OPTIONS) {
        return Ok(Vec::new());
    }
    parser.expect_token(&Token::LParen).map_err(syntax)?;
    let mut options = Vec::new();
    while !parser.consume_token(&Token::RParen) {
        let name = parser.parse_identifier().map_err(syntax)?.value.to_ascii_lowercase();
        parser.expect_token(&Token::Eq).map_err(syntax)?;
        let value = parser.parse_expr().map_err(syntax)?;
        options.push((name, evaluate(&value)?));
        if !parser.consume_token(&Token::Comma) {
            parser.expect_token(&Token::RParen).map_err(syntax)?;
            break;
        }
    }
    Ok(options)
}

/// The value of a constant expression. Intervals become texts such as `0-0 0 0:10:0`.
fn evaluate(expr: &Expr) -> Result<Value, Failure> {
    Ok(match expr {
        Expr::Value(value) => match &value.value {
            Literal::Null => Value::Null,
            Literal::Boolean(is) => json!(is),
            Literal::Number(text, _) => match text.parse::<i64>() {
                Ok(number) => json!(number),
                Err(_) => json!(text.parse::<f64>().map_err(|_| Failure::unsupported(expr))?),
            },
            other => json!(other.clone().into_string().ok_or_else(|| Failure::unsupported(expr))?),
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } => match evaluate(inner)?.as_f64() {
            Some(number) => json!(-number),
            None => return Err(Failure::unsupported(expr)),
        },
        Expr::Nested(inner) => evaluate(inner)?,
        Expr::Array(array) => array.elem.iter().map(evaluate).collect::<Result<_, _>>()?,
        Expr::Tuple(parts) => parts.iter().map(evaluate).collect::<Result<_, _>>()?,
        Expr::Struct { values, .. } => values.iter().map(evaluate).collect::<Result<_, _>>()?,
        Expr::Named { expr, .. } => evaluate(expr)?,
        Expr::TypedString(typed) => json!(typed.value.value.clone().into_string().unwrap_or_default()),
        Expr::Interval(interval) => json!(interval_text(interval)?),
        other => return Err(Failure::unsupported(format!("the option's value {other}"))),
    })
}

fn interval_text(interval: &Interval) -> Result<String, Failure> {
    let value = evaluate(&interval.value)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let unit =
        interval.leading_field.as_ref().map(|unit| unit.to_string().to_ascii_uppercase()).unwrap_or_default();
    if interval.last_field.is_some() {
        return Ok(text);
    }
    let count: i64 = text.parse().map_err(|_| Failure::unsupported(interval))?;
    Ok(match unit.as_str() {
        "YEAR" => format!("{count}-0 0 0:0:0"),
        "MONTH" => format!("0-{count} 0 0:0:0"),
        "DAY" => format!("0-0 {count} 0:0:0"),
        "HOUR" => format!("0-0 0 {count}:0:0"),
        "MINUTE" => format!("0-0 0 {}:{}:0", count / 60, count % 60),
        "SECOND" => format!("0-0 0 {}:{}:{}", count / 3600, count / 60 % 60, count % 60),
        _ => return Err(Failure::unsupported(interval)),
    })
}

/// Puts options of a table, view or dataset into its resource.
pub(crate) fn apply(options: Vec<Given>, resource: &mut Map<String, Value>) -> Result<(), Failure> {
    for (name, value) in options {
        let days =
            |value: &Value| value.as_f64().map(|days| json!(((days * 86_400_000.0) as i64).to_string()));
        let (field, value) = match name.as_str() {
            "description" | "location" => (name.as_str(), value),
            "friendly_name" => ("friendlyName", value),
            "require_partition_filter" => ("requirePartitionFilter", value),
            "max_staleness" => ("maxStaleness", value),
            "default_table_expiration_days" => {
                ("defaultTableExpirationMs", days(&value).unwrap_or(Value::Null))
            }
            "default_partition_expiration_days" => {
                ("defaultPartitionExpirationMs", days(&value).unwrap_or(Value::Null))
            }
            "max_time_travel_hours" => ("maxTimeTravelHours", json!(value.to_string())),
            "storage_billing_model" => ("storageBillingModel", value),
            "expiration_timestamp" => {
                let micros = value.as_str().map(super::timestamp_micros).transpose()?;
                ("expirationTime", micros.map_or(Value::Null, |micros| json!((micros / 1000).to_string())))
            }
            "labels" => {
                let pairs = value.as_array().cloned().unwrap_or_default();
                let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.clone()));
                let labels =
                    pairs.iter().map(|p| pair(p).ok_or_else(|| Failure::query("labels are pairs of texts")));
                ("labels", Value::Object(labels.collect::<Result<_, _>>()?))
            }
            "partition_expiration_days" => {
                let expiration = days(&value).unwrap_or(Value::Null);
                match resource.get_mut("timePartitioning").and_then(Value::as_object_mut) {
                    Some(partitioning) if expiration.is_null() => {
                        partitioning.remove("expirationMs");
                    }
                    Some(partitioning) => {
                        partitioning.insert("expirationMs".to_owned(), expiration);
                    }
                    None => {
                        return Err(Failure::query("partition_expiration_days needs a partitioned table"));
                    }
                }
                continue;
            }
            "enable_refresh" | "refresh_interval_minutes" | "allow_non_incremental_definition" => continue,
            other => return Err(Failure::query(format!("Unknown option: {other}"))),
        };
        if value.is_null() {
            resource.remove(field);
        } else {
            resource.insert(field.to_owned(), value);
        }
    }
    Ok(())
}

/// `PARTITION BY`'s expression in the resource.
pub(crate) fn partition(expr: &Expr, resource: &mut Map<String, Value>) -> Result<(), Failure> {
    let text = expr.to_string().replace('`', "");
    let column = |text: &str| {
        let ingestion =
            ["_PARTITIONTIME", "_PARTITIONDATE"].iter().any(|name| text.eq_ignore_ascii_case(name));
        (!ingestion).then(|| text.to_owned())
    };
    let plain = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
    let (field, unit) = match text.split_once('(') {
        None if plain(&text) => (column(&text), "DAY".to_owned()),
        Some((function, rest)) => {
            let inner = rest.strip_suffix(')').unwrap_or(rest);
            let (first, second) = inner.split_once(',').unwrap_or((inner, ""));
            let (first, second) = (first.trim(), second.trim().to_ascii_uppercase());
            match function.to_ascii_uppercase().as_str() {
                "DATE" if plain(first) => (column(first), "DAY".to_owned()),
                "TIMESTAMP_TRUNC" | "DATETIME_TRUNC" | "DATE_TRUNC"
                    if plain(first) && ["HOUR", "DAY", "MONTH", "YEAR"].contains(&second.as_str()) =>
                {
                    (column(first), second)
                }
                "RANGE_BUCKET" => {
                    let numbers = inner.split_once("GENERATE_ARRAY(").and_then(|(_, n)| n.strip_suffix(')'));
                    let numbers: Vec<_> = numbers.unwrap_or_default().split(',').map(str::trim).collect();
                    let [start, end, interval] = numbers.as_slice() else {
                        return Err(Failure::unsupported(expr));
                    };
                    let range = json!({"start": start, "end": end, "interval": interval});
                    resource.insert("rangePartitioning".to_owned(), json!({"field": first, "range": range}));
                    return Ok(());
                }
                _ => return Err(Failure::unsupported(format!("PARTITION BY {text}"))),
            }
        }
        None => return Err(Failure::unsupported(format!("PARTITION BY {text}"))),
    };
    let mut partitioning = json!({"type": unit});
    if let Some(field) = field {
        partitioning["field"] = json!(field);
    }
    resource.insert("timePartitioning".to_owned(), partitioning);
    Ok(())
}
