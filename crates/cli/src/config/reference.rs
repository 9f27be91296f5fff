//! The README's table of keys, made from the JSON Schema, and the test that it is current.

use std::fmt::Write as _;

use serde_json::Value;

const BEGIN: &str = "<!-- config: made from the schema, see crates/cli/src/config/reference.rs -->\n";
const END: &str = "<!-- /config -->\n";

/// One row for each key, in the schema's order.
fn table() -> String {
    let schema: Value = serde_json::from_str(&super::json_schema_text()).unwrap();
    let mut out = "| key | value | meaning |\n|---|---|---|\n".to_owned();
    rows(&schema, &schema, "", &mut out);
    out
}

fn rows(root: &Value, schema: &Value, prefix: &str, out: &mut String) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if name == "type" {
            continue;
        }
        let path = format!("{prefix}{name}");
        let target = resolve(root, property);
        let required = schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
        let text = property["description"].as_str().or(target["description"].as_str()).unwrap_or_default();
        let text = text.replace('\n', " ");
        let must = if required { "**required.** " } else { "" };
        // Writing into a String does not fail, here and below.
        let _ = writeln!(out, "| `{path}` | {} | {must}{text} |", kind(root, target));
        nested(root, target, &path, out);
    }
}

fn nested(root: &Value, target: &Value, path: &str, out: &mut String) {
    if let Some(variants) = tagged(target) {
        for variant in variants {
            let variant_schema = resolve(root, variant);
            let name = variant["properties"]["type"]["const"].as_str().unwrap_or_default();
            let text = variant["description"].as_str().unwrap_or_default().replace('\n', " ");
            let _ = writeln!(out, "| `{path}.type: {name}` | | {text} |");
            rows(root, variant_schema, &format!("{path}."), out);
        }
        return;
    }
    let items = resolve(root, &target["items"]);
    if tagged(items).is_some() {
        return nested(root, items, &format!("{path}[]"), out);
    }
    let values = resolve(root, &target["additionalProperties"]);
    if values["properties"].is_object() {
        return rows(root, values, &format!("{path}.<name>."), out);
    }
    match target["anyOf"].as_array() {
        Some(options) => {
            options.iter().map(|o| resolve(root, o)).for_each(|o| rows(root, o, &format!("{path}."), out))
        }
        None => rows(root, target, &format!("{path}."), out),
    }
}

/// Variants that `type` tells apart.
fn tagged(schema: &Value) -> Option<&Vec<Value>> {
    schema["oneOf"].as_array().filter(|variants| variants.iter().all(|v| v["properties"]["type"].is_object()))
}

/// Follows a reference; of "this or null", this.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(options) = schema["anyOf"].as_array()
        && let [only] = options.iter().filter(|o| o["type"] != "null").collect::<Vec<_>>()[..]
    {
        return resolve(root, only);
    }
    match schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        Some(name) => &root["$defs"][name],
        None => schema,
    }
}

/// What a value looks like.
fn kind(root: &Value, schema: &Value) -> String {
    let values = values_of(root, schema);
    if !values.is_empty() {
        return values.join(", ");
    }
    if schema["description"].as_str().is_some_and(|d| d.starts_with("A number with a unit")) {
        return "duration".to_owned();
    }
    if schema["description"].as_str().is_some_and(|d| d.starts_with("Bytes, or a number")) {
        return "size".to_owned();
    }
    let names: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect()
        }
        _ => Vec::new(),
    };
    let name = |name: &str| match name {
        "string" => "text".to_owned(),
        "integer" => "number".to_owned(),
        "array" => "list".to_owned(),
        "object" => "mapping".to_owned(),
        "boolean" => "`true`, `false`".to_owned(),
        other => other.to_owned(),
    };
    if names.is_empty() {
        "mapping".to_owned()
    } else {
        names.into_iter().map(name).collect::<Vec<_>>().join(" or ")
    }
}

/// The names that a value may be.
fn values_of(root: &Value, schema: &Value) -> Vec<String> {
    let options = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    let mut values: Vec<String> = schema["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|v| format!("`{v}`"))
        .collect();
    for option in options.into_iter().flatten() {
        let option = resolve(root, option);
        if let Some(value) = option["const"].as_str() {
            values.push(format!("`{value}`"));
        } else if option["properties"].is_object() && !values.is_empty() {
            values.push("mapping".to_owned());
        } else {
            values.extend(values_of(root, option));
        }
    }
    values
}

/// Set `UPDATE_README` to write it.
#[test]
fn the_readme_knows_every_key() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(file).unwrap();
    let (before, rest) = readme.split_once(BEGIN).expect("the README has a place for the table");
    let (kept, after) = rest.split_once(END).expect("the table has an end");
    let table = table();
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(file, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert!(kept == table, "run `make schema`");
    }
}
