//! From the document's tree to typed config: a serde deserializer whose errors know their place.
//!
//! An enum with values (`source`, a sink) is a mapping that names its variant under `type`. Values never appear in
//! errors if anything of them came from the environment.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};

use super::document::{Node, NodeKind, Place, Scalar};
use super::problem::Problem;

/// The key that names the variant of an enum with values.
const TAG: &str = "type";

/// Reads a `T` out of `root`.
pub(crate) fn read<T: DeserializeOwned>(root: &Node) -> Result<T, Problem> {
    T::deserialize(At { node: root, skip: None }).map_err(|e| {
        let problem = Problem::new(e.place.unwrap_or(root.place), e.message);
        match e.help {
            Some(help) => problem.help(help),
            None => problem,
        }
    })
}

/// The name among `known` that `name` was probably meant to be.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = name.to_lowercase().replace('-', "_");
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(&folded, &k.to_lowercase().replace('-', "_")), k))
        .filter(|(distance, k)| *distance <= 1 + k.len() / 4 || (k.len() > 3 && folded.contains(k)))
        .min()
        .map(|(_, k)| k)
}

/// A message, and its place as soon as it is known.
#[derive(Debug)]
pub(crate) struct Error {
    message: String,
    /// What to say instead if the text that is wrong came from the environment.
    discreet: Option<String>,
    help: Option<String>,
    place: Option<Place>,
}

impl Error {
    fn unknown(what: &str, name: &str, help: String, expected: &[&str]) -> Self {
        let near = nearest(name, expected.iter().copied()).map(|near| format!("; did you mean `{near}`?"));
        Self {
            message: format!("unknown {what} `{name}`{}", near.unwrap_or_default()),
            discreet: Some(format!("unknown {what} (from the environment)")),
            help: Some(help),
            place: None,
        }
    }

    fn at(mut self, node: &Node) -> Self {
        if let (NodeKind::Scalar(scalar), Some(discreet)) = (&node.kind, self.discreet.take())
            && scalar.substituted
        {
            self.message = discreet;
        }
        self.place.get_or_insert(match &node.kind {
            NodeKind::Scalar(_) => node.place,
            // The start of a mapping or sequence is enough to find it.
            _ => Place { len: 1, ..node.place },
        });
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), discreet: None, help: None, place: None }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        // serde's words for what people call lists and mappings.
        let expected = expected.to_string();
        let expected = match &*expected {
            "a sequence" => "a list",
            "a map" => "a mapping",
            other if other.starts_with("struct ") => "a mapping",
            other => other,
        };
        Self::custom(format!("expected {expected}, found {}", kind_of(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format!(
            "expected {expected}, found another {}",
            kind_of(found).trim_start_matches("a ")
        ))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown("value", variant, format!("known: {}", expected.join(", ")), expected)
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown("key", field, format!("known here: {}", expected.join(", ")), expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::custom(format!("`{field}` is missing"))
    }
}

fn kind_of(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => "a number",
        Unexpected::Str(_) | Unexpected::Char(_) | Unexpected::Bytes(_) => "a text",
        Unexpected::Unit | Unexpected::Option => "nothing",
        Unexpected::Seq => "a list",
        Unexpected::Map | Unexpected::StructVariant => "a mapping",
        _ => "something else",
    }
}

/// A node to be read; `skip` is the key of its mapping that was read before.
#[derive(Clone, Copy)]
struct At<'a> {
    node: &'a Node,
    skip: Option<&'static str>,
}

impl<'a> At<'a> {
    fn scalar(self, expected: &str) -> Result<&'a Scalar, Error> {
        let found = match &self.node.kind {
            NodeKind::Scalar(scalar) => return Ok(scalar),
            NodeKind::Sequence(_) => "a list",
            NodeKind::Mapping(_) => "a mapping",
        };
        Err(<Error as de::Error>::custom(format!("expected {expected}, found {found}")).at(self.node))
    }

    fn number<T: std::str::FromStr>(self) -> Result<T, Error> {
        let scalar = self.scalar("a number")?;
        let digits = scalar.text.replace('_', "");
        digits.parse().map_err(|_| {
            let message = if scalar.substituted {
                "expected a number within range, found another text (from the environment)".to_owned()
            } else {
                format!("expected a number within range, found `{}`", scalar.text)
            };
            <Error as de::Error>::custom(message).at(self.node)
        })
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.number()?).map_err(|e: Error| e.at(self.node))
        }
    )*};
}

impl<'de> Deserializer<'de> for At<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let result = match &self.node.kind {
            NodeKind::Scalar(scalar) => plain_value(scalar, visitor),
            NodeKind::Sequence(items) => visitor.visit_seq(Items(items.iter())),
            NodeKind::Mapping(entries) => {
                visitor.visit_map(Entries { entries: entries.iter(), value: None, skip: self.skip })
            }
        };
        result.map_err(|e| e.at(self.node))
    }

    numbers!(
        deserialize_u8 visit_u8, deserialize_u16 visit_u16, deserialize_u32 visit_u32, deserialize_u64 visit_u64,
        deserialize_i8 visit_i8, deserialize_i16 visit_i16, deserialize_i32 visit_i32, deserialize_i64 visit_i64,
        deserialize_f32 visit_f32, deserialize_f64 visit_f64
    );

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node.is_null() {
            return Err(<Error as de::Error>::custom("expected a text, found nothing").at(self.node));
        }
        visitor.visit_str(&self.scalar("a text")?.text).map_err(|e: Error| e.at(self.node))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self).map_err(|e: Error| e.at(self.node))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let tag = match &self.node.kind {
            NodeKind::Scalar(_) => self.node,
            NodeKind::Mapping(_) => match self.node.entry(TAG) {
                Some((_, tag)) => tag,
                None => {
                    let mut error = <Error as de::Error>::custom(format!("`{TAG}` is missing")).at(self.node);
                    error.help = Some(format!("known: {}", variants.join(", ")));
                    return Err(error);
                }
            },
            NodeKind::Sequence(_) => {
                return Err(<Error as de::Error>::custom("expected a mapping, found a list").at(self.node));
            }
        };
        visitor.visit_enum(Variant { tag, body: self }).map_err(|e: Error| e.at(self.node))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool char bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
    }
}

/// A scalar where its type is open: an unquoted one may be null, a boolean or an integer.
fn plain_value<'de, V: Visitor<'de>>(scalar: &Scalar, visitor: V) -> Result<V::Value, Error> {
    if scalar.plain {
        match &*scalar.text {
            "" | "~" | "null" => return visitor.visit_unit(),
            "true" => return visitor.visit_bool(true),
            "false" => return visitor.visit_bool(false),
            text => {
                if let Ok(v) = text.parse::<u64>() {
                    return visitor.visit_u64(v);
                }
                if let Ok(v) = text.parse::<i64>() {
                    return visitor.visit_i64(v);
                }
            }
        }
    }
    visitor.visit_str(&scalar.text)
}

struct Items<'a>(std::slice::Iter<'a, Node>);

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(node) = self.0.next() else { return Ok(None) };
        seed.deserialize(At { node, skip: None }).map(Some).map_err(|e| e.at(node))
    }
}

struct Entries<'a> {
    entries: std::slice::Iter<'a, (Node, Node)>,
    value: Option<&'a Node>,
    skip: Option<&'static str>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let skip = self.skip;
        let Some((key, value)) = self.entries.find(|(key, _)| skip.is_none() || key.text() != skip) else {
            return Ok(None);
        };
        self.value = Some(value);
        seed.deserialize(At { node: key, skip: None }).map(Some).map_err(|e| e.at(key))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let node = self.value.take().expect("invariant: serde asks for a key before its value");
        seed.deserialize(At { node, skip: None }).map_err(|e| e.at(node))
    }
}

struct Variant<'a> {
    tag: &'a Node,
    body: At<'a>,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = VariantBody<'a>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, VariantBody<'a>), Error> {
        let at = At { node: self.tag, skip: None };
        let scalar = at.scalar("a text")?;
        let name = IntoDeserializer::<Error>::into_deserializer(&*scalar.text);
        let value = seed.deserialize(name).map_err(|e: Error| e.at(self.tag))?;
        Ok((value, VariantBody { body: self.body }))
    }
}

struct VariantBody<'a> {
    body: At<'a>,
}

impl<'de> VariantAccess<'de> for VariantBody<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match &self.body.node.kind {
            NodeKind::Mapping(entries) => match entries.iter().find(|(k, _)| k.text() != Some(TAG)) {
                None => Ok(()),
                Some((key, _)) => {
                    let name = key.text().unwrap_or_default();
                    Err(<Error as de::Error>::unknown_field(name, &[TAG]).at(key))
                }
            },
            _ => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        match self.body.node.kind {
            NodeKind::Mapping(_) => seed.deserialize(At { node: self.body.node, skip: Some(TAG) }),
            _ => Err(<Error as de::Error>::custom("expected a mapping with `type`, found a text")),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(<Error as de::Error>::custom("not a value of a config"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        At { node: self.body.node, skip: Some(TAG) }.deserialize_any(visitor)
    }
}
