//! Subscriptions' filters over attributes: `attributes:KEY`, `attributes.KEY = "v"`, `!=`, `hasPrefix(attributes.KEY, "v")`,
//! joined by AND or OR, turned by NOT or `-`. Limits: 256 bytes; AND and OR mix only in parentheses, as in the service.
//!
//! As in Google's own fake, `!=` also holds where the key is absent.

use super::message;

const BYTES_MAX: usize = 256;

/// A filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    Has(String),
    Equal(String, String),
    Prefix(String, String),
    Not(Box<Filter>),
    All(Vec<Filter>),
    Any(Vec<Filter>),
}

impl Filter {
    /// Reads a filter; none if the text is empty.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > BYTES_MAX {
            return Err(format!("A filter has at most {BYTES_MAX} bytes; this one has {}.", text.len()));
        }
        let mut parser = Parser { text, at: 0 };
        let filter = parser.joined()?;
        parser.blanks();
        if parser.at < text.len() { Err(parser.wrong("the end")) } else { Ok(Some(filter)) }
    }

    /// Whether a message passes.
    pub(crate) fn passes(&self, wire: &[u8]) -> bool {
        // The last of equal keys counts.
        let value = |key: &str| {
            message::attributes(wire).filter(|(name, _)| *name == key).last().map(|(_, value)| value)
        };
        match self {
            Filter::Has(key) => value(key).is_some(),
            Filter::Equal(key, wanted) => value(key) == Some(wanted),
            Filter::Prefix(key, prefix) => value(key).is_some_and(|value| value.starts_with(prefix.as_str())),
            Filter::Not(inner) => !inner.passes(wire),
            Filter::All(all) => all.iter().all(|filter| filter.passes(wire)),
            Filter::Any(any) => any.iter().any(|filter| filter.passes(wire)),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn wrong(&self, wanted: &str) -> String {
        format!(
            "Invalid filter: {wanted} was expected at character {}.",
            self.text[..self.at].chars().count() + 1
        )
    }

    fn take(&mut self, token: &str) -> bool {
        self.blanks();
        let taken = self.rest().starts_with(token);
        if taken {
            self.at += token.len();
        }
        taken
    }

    fn word(&mut self, word: &str) -> bool {
        self.blanks();
        let rest = self.rest();
        let whole = rest.strip_prefix(word).is_some_and(|after| !after.starts_with(is_word));
        if whole {
            self.at += word.len();
        }
        whole
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.take(token) { Ok(()) } else { Err(self.wrong(&format!("`{token}`"))) }
    }

    fn joined(&mut self) -> Result<Filter, String> {
        let first = self.turned()?;
        let mut all = vec![first];
        let mut joint = None;
        loop {
            let this = if self.word("AND") {
                "AND"
            } else if self.word("OR") {
                "OR"
            } else {
                break;
            };
            if *joint.get_or_insert(this) != this {
                return Err("Invalid filter: AND and OR can be mixed only in parentheses.".to_owned());
            }
            all.push(self.turned()?);
        }
        Ok(match joint {
            Some("AND") => Filter::All(all),
            Some(_) => Filter::Any(all),
            None => all.remove(0),
        })
    }

    fn turned(&mut self) -> Result<Filter, String> {
        if self.word("NOT") || self.take("-") {
            return Ok(Filter::Not(Box::new(self.turned()?)));
        }
        if self.take("(") {
            let inner = self.joined()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.word("hasPrefix") {
            self.expect("(")?;
            self.expect("attributes")?;
            self.expect(".")?;
            let key = self.key()?;
            self.expect(",")?;
            let prefix = self.string()?;
            self.expect(")")?;
            return Ok(Filter::Prefix(key, prefix));
        }
        self.expect("attributes")?;
        if self.take(":") {
            return Ok(Filter::Has(self.key()?));
        }
        self.expect(".")?;
        let key = self.key()?;
        if self.take("!=") {
            return Ok(Filter::Not(Box::new(Filter::Equal(key, self.string()?))));
        }
        self.expect("=")?;
        Ok(Filter::Equal(key, self.string()?))
    }

    fn key(&mut self) -> Result<String, String> {
        self.blanks();
        if self.rest().starts_with('"') {
            return self.string();
        }
        let length = self.rest().find(|c: char| !is_word(c)).unwrap_or(self.rest().len());
        if length == 0 {
            return Err(self.wrong("an attribute's key"));
        }
        let key = self.rest()[..length].to_owned();
        self.at += length;
        Ok(key)
    }

    fn string(&mut self) -> Result<String, String> {
        self.expect("\"")?;
        let mut string = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += at + 1;
                    return Ok(string);
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => string.push('\n'),
                    Some((_, 't')) => string.push('\t'),
                    Some((_, 'r')) => string.push('\r'),
                    Some((_, escape @ ('u' | 'x'))) => {
                        let digits = if escape == 'u' { 4 } else { 2 };
                        let hex: String = chars.by_ref().take(digits).map(|(_, digit)| digit).collect();
                        let code = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
                        string.push(code.ok_or_else(|| self.wrong("a valid escape in the string"))?);
                    }
                    Some((_, other)) => string.push(other),
                    None => break,
                },
                c => string.push(c),
            }
        }
        Err(self.wrong("a string in quotes"))
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pubsub::api::PubsubMessage;
    use prost::Message as _;

    fn passing(filter: &str) -> Vec<usize> {
        let filter = Filter::parse(filter).unwrap().unwrap();
        let messages: [&[(&str, &str)]; 4] = [
            &[("lang", "en"), ("name", "com")],
            &[("lang", "en"), ("name", "co")],
            &[("lang", "jp")],
            &[("a/b", "\"")],
        ];
        let passes = |attributes: &[(&str, &str)]| {
            let attributes = attributes.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            filter.passes(&PubsubMessage { attributes, ..PubsubMessage::default() }.encode_to_vec())
        };
        (0..4).filter(|at| passes(messages[*at])).collect()
    }

    #[test]
    fn filters_choose_by_attributes() {
        assert_eq!(passing("attributes.name = \"com\""), [0]);
        assert_eq!(passing("attributes.name != \"com\""), [1, 2, 3]);
        assert_eq!(passing("attributes:name"), [0, 1]);
        assert_eq!(passing("NOT attributes:name"), [2, 3]);
        assert_eq!(passing("-attributes:name AND attributes:lang"), [2]);
        assert_eq!(passing("hasPrefix(attributes.name, \"co\")"), [0, 1]);
        assert_eq!(passing("attributes:\"a/b\""), [3]);
        assert_eq!(passing(r#"attributes."a/b"="\"""#), [3]);
        assert_eq!(passing(r#"attributes."a\u002fb" = "\x22""#), [3]);
        assert_eq!(
            passing("attributes.lang=\"jp\" OR (attributes:name AND NOT attributes.name = \"co\")"),
            [0, 2]
        );
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let long = format!("attributes:{}", "k".repeat(256));
        for wrong in [
            "x",
            "attributes",
            "attributes.name",
            "attributes.name = com",
            "attributes.name = \"com",
            "attributes:a AND attributes:b OR attributes:c",
            "(attributes:a",
            "attributes:a attributes:b",
            "hasPrefix(attributes.a)",
            "attributes.a = \"\\u12\"",
            "NOTattributes:a",
            "attributes:a é",
            &long,
        ] {
            assert!(Filter::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Filter::parse(""), Ok(None));
        let deep = format!("{}attributes:a{}", "(".repeat(120), ")".repeat(120));
        assert!(Filter::parse(&deep).is_ok());
    }
}
