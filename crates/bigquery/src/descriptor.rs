//! What rows look like on the wire: a protobuf descriptor made from a table's columns.
//!
//! It is self-contained, as the service asks: one message with all messages of its structs inside, no package, no imports. A column's
//! field number is its position, counted from 1, so rows of an older, narrower schema stay readable. The two pseudo columns of change
//! data capture have numbers past all columns that such a table can have.
//!
//! The messages are written here and not taken from `prost-types`, whose field options drop extensions, and the name of a column
//! that is no protobuf identifier is one.

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use prost::Message as _;

use crate::column_type::ColumnType;
use crate::field::{Field, Mode};
use crate::names::fold;

/// The field number of `_CHANGE_TYPE`. Tables with change data capture have at most 2,000 columns.
pub const CHANGE_TYPE: u32 = 2046;
/// The field number of `_CHANGE_SEQUENCE_NUMBER`.
pub const CHANGE_SEQUENCE_NUMBER: u32 = 2047;
/// Columns that a table with change data capture can have.
const CHANGE_COLUMNS_MAX: usize = 2000;
/// Columns that a table can have.
const COLUMNS_MAX: usize = 10_000;

/// The `writer_schema` of rows, as bytes. Cheap to clone; equal descriptors describe equal rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Descriptor {
    bytes: Bytes,
}

impl Descriptor {
    /// The descriptor of rows with these columns.
    ///
    /// # Errors
    /// A text that says which columns cannot be written: two of one name, structs without fields, too many.
    pub fn new(fields: &[Field]) -> Result<Self, String> {
        Self::build(fields, false)
    }

    /// The same with the pseudo columns of change data capture.
    ///
    /// # Errors
    /// Like [`new`](Self::new).
    pub fn with_changes(fields: &[Field]) -> Result<Self, String> {
        Self::build(fields, true)
    }

    fn build(fields: &[Field], changes: bool) -> Result<Self, String> {
        let columns_max = if changes { CHANGE_COLUMNS_MAX } else { COLUMNS_MAX };
        if fields.len() > columns_max {
            return Err(format!("the table has {} columns, and BigQuery takes {columns_max}", fields.len()));
        }
        let mut nested = Vec::new();
        let mut root = message("Row".to_owned(), fields, &mut nested)?;
        root.nested = nested;
        if changes {
            let pseudo = |name: &str, number| FieldProto {
                name: Some(name.to_owned()),
                number: Some(number as i32),
                label: Some(OPTIONAL),
                kind: Some(STRING),
                ..FieldProto::default()
            };
            root.fields.push(pseudo("_change_type", CHANGE_TYPE));
            root.fields.push(pseudo("_change_sequence_number", CHANGE_SEQUENCE_NUMBER));
        }
        Ok(Self { bytes: root.encode_to_vec().into() })
    }

    /// The encoded `google.protobuf.DescriptorProto`.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Messages of structs are all put beside each other into the root; `nested` has those so far.
fn message(name: String, fields: &[Field], nested: &mut Vec<MessageProto>) -> Result<MessageProto, String> {
    let mut columns = HashSet::with_capacity(fields.len());
    let mut taken = HashSet::with_capacity(fields.len());
    let mut protos = Vec::with_capacity(fields.len());
    for (i, field) in fields.iter().enumerate() {
        if !columns.insert(fold(&field.name)) {
            return Err(format!(
                "two columns are called `{}`: BigQuery does not tell upper from lower case",
                field.name
            ));
        }
        let (mut proto_name, is_placeholder) = proto_name(&field.name);
        while !taken.insert(proto_name.clone()) {
            proto_name.push('_');
        }
        let mut type_name = None;
        if field.ty == ColumnType::Record {
            if field.fields.is_empty() {
                return Err(format!("the column `{}` is a struct without fields", field.name));
            }
            // Fields are in lower case, so that none of them hides a message.
            let nested_name = format!("S{}", nested.len());
            // Its place is taken before its own structs take theirs.
            let place = nested.len();
            nested.push(MessageProto::default());
            nested[place] = message(nested_name.clone(), &field.fields, nested)?;
            type_name = Some(nested_name);
        }
        protos.push(FieldProto {
            name: Some(proto_name),
            number: Some(i as i32 + 1),
            // Also for required columns: whether a value is missing is for the service to say, row by row.
            label: Some(if field.mode == Mode::Repeated { REPEATED } else { OPTIONAL }),
            kind: Some(wire_kind(&field.ty)),
            type_name,
            options: is_placeholder.then(|| OptionsProto { column_name: Some(field.name.clone()) }),
        });
    }
    Ok(MessageProto { name: Some(name), fields: protos, nested: Vec::new() })
}

/// The column's name if protobuf can have it, in lower case; else a placeholder.
fn proto_name(name: &str) -> (String, bool) {
    let is_identifier = !name.is_empty()
        && !name.as_bytes()[0].is_ascii_digit()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if is_identifier {
        (name.to_ascii_lowercase(), false)
    } else {
        (format!("col_{}", URL_SAFE_NO_PAD.encode(name).replace('-', "_")), true)
    }
}

const OPTIONAL: i32 = 1;
const REPEATED: i32 = 3;
const STRING: i32 = 9;

/// `FieldDescriptorProto.Type`.
fn wire_kind(ty: &ColumnType) -> i32 {
    match ty {
        ColumnType::Float64 => 1,
        ColumnType::Int64 | ColumnType::Time | ColumnType::DateTime | ColumnType::Timestamp => 3,
        ColumnType::Date => 5,
        ColumnType::Bool => 8,
        ColumnType::String | ColumnType::Json | ColumnType::Geography | ColumnType::Other(_) => STRING,
        ColumnType::Record => 11,
        ColumnType::Bytes | ColumnType::Numeric | ColumnType::BigNumeric => 12,
    }
}

/// `google.protobuf.DescriptorProto`.
#[derive(Clone, PartialEq, prost::Message)]
struct MessageProto {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(message, repeated, tag = "2")]
    fields: Vec<FieldProto>,
    #[prost(message, repeated, tag = "3")]
    nested: Vec<MessageProto>,
}

/// `google.protobuf.FieldDescriptorProto`.
#[derive(Clone, PartialEq, prost::Message)]
struct FieldProto {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    number: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    label: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    kind: Option<i32>,
    #[prost(string, optional, tag = "6")]
    type_name: Option<String>,
    #[prost(message, optional, tag = "8")]
    options: Option<OptionsProto>,
}

/// `google.protobuf.FieldOptions` with `google.cloud.bigquery.storage.v1.column_name`.
#[derive(Clone, PartialEq, prost::Message)]
struct OptionsProto {
    #[prost(string, optional, tag = "454943157")]
    column_name: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(descriptor: &Descriptor) -> MessageProto {
        MessageProto::decode(descriptor.bytes().clone()).unwrap()
    }

    #[test]
    fn columns_have_the_numbers_of_their_positions() {
        let fields = [
            Field::new("Id", ColumnType::Int64),
            Field::new("größe", ColumnType::String),
            Field::new("1st", ColumnType::Date).with_mode(Mode::Repeated),
        ];
        let root = decoded(&Descriptor::with_changes(&fields).unwrap());
        let shown: Vec<_> = root
            .fields
            .iter()
            .map(|f| (f.name.as_deref().unwrap(), f.number.unwrap(), f.label.unwrap(), f.kind.unwrap()))
            .collect();
        assert_eq!(
            shown,
            [
                ("id", 1, 1, 3),
                ("col_Z3LDtsOfZQ", 2, 1, 9),
                ("col_MXN0", 3, 3, 5),
                ("_change_type", 2046, 1, 9),
                ("_change_sequence_number", 2047, 1, 9),
            ]
        );
        let name = |i: usize| root.fields[i].options.as_ref().and_then(|o| o.column_name.as_deref());
        assert_eq!((name(0), name(1), name(2)), (None, Some("größe"), Some("1st")));
    }

    #[test]
    fn structs_lie_beside_each_other() {
        let leaf = Field {
            fields: vec![Field::new("x", ColumnType::Bool)],
            ..Field::new("leaf", ColumnType::Record)
        };
        let outer =
            Field { fields: vec![leaf.clone(), leaf.clone()], ..Field::new("outer", ColumnType::Record) };
        assert!(Descriptor::new(std::slice::from_ref(&outer)).unwrap_err().contains("leaf"));
        let outer = Field { fields: vec![leaf.clone()], ..outer };
        let root = decoded(&Descriptor::new(&[outer, leaf]).unwrap());
        let names: Vec<_> = root.nested.iter().map(|m| m.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["S0", "S1", "S2"]);
        assert_eq!(root.nested[0].fields[0].type_name.as_deref(), Some("S1"));
        assert_eq!(root.fields[1].type_name.as_deref(), Some("S2"));
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let of = |names: [&str; 2]| Descriptor::new(&names.map(|n| Field::new(n, ColumnType::Int64)));
        assert!(of(["a", "A"]).unwrap_err().contains("`A`"));
        // The name of one is the placeholder of the other.
        assert!(of(["col_mxn0", "1st"]).is_ok());
        assert!(Descriptor::new(&[Field::new("s", ColumnType::Record)]).is_err());
        let many: Vec<_> = (0..2001).map(|i| Field::new(format!("c{i}"), ColumnType::Int64)).collect();
        assert!(Descriptor::new(&many).is_ok() && Descriptor::with_changes(&many).is_err());
    }
}
