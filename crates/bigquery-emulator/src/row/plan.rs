//! A descriptor compared with a table's schema: which field goes to which column.

use std::collections::HashMap;

use crate::schema::{self, Column, Mode, Type};
use crate::wire::{Descriptor, FieldDescriptor};

/// Numbers of fields that are looked up in a vector.
const DIRECT: usize = 4096;

/// How the rows of a connection are read.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) root: Message,
    pub(crate) change_type: Option<usize>,
    pub(crate) sequence: Option<usize>,
}

/// How a message is read: its fields, and for each column of its record the field that fills it.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) fields: Vec<Field>,
    pub(crate) columns: Vec<Option<usize>>,
    direct: Vec<u32>,
    others: HashMap<u32, usize>,
}

/// A field.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) proto: Proto,
    pub(crate) repeated: bool,
    pub(crate) required: bool,
}

/// A field's type.
#[derive(Debug)]
pub(crate) enum Proto {
    Double,
    Float,
    Int64,
    Uint64,
    Int32,
    Uint32,
    Sint32,
    Sint64,
    Fixed64,
    Fixed32,
    Sfixed64,
    Sfixed32,
    Bool,
    Text,
    Bytes,
    Enum(HashMap<i32, String>),
    /// One of Google's wrappers, such as `Int64Value`: a message with a scalar in field 1.
    Wrapper(Box<Proto>),
    /// `google.protobuf.Timestamp`: seconds and nanoseconds.
    Moment,
    /// `google.protobuf.Duration`: seconds and nanoseconds.
    Duration,
    /// A record's, or a range's with `start` and `end`.
    Message(Box<Message>),
}

/// Why a descriptor does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// It has fields that the table lacks.
    Extra(String),
    /// Anything else.
    Invalid(String),
}

impl Plan {
    /// Compares a descriptor with the schema.
    pub(crate) fn new(descriptor: &Descriptor, columns: &[Column]) -> Result<Self, Mismatch> {
        let mut types = Types { messages: HashMap::new(), enums: HashMap::new() };
        types.collect(descriptor, "", 0);
        let mut extra = Vec::new();
        let (mut change_type, mut sequence) = (None, None);
        let mut root = types.message(descriptor, columns, "", &mut extra, &mut |field, index| {
            match field.name.to_ascii_uppercase().as_str() {
                "_CHANGE_TYPE" => change_type = Some(index),
                "_CHANGE_SEQUENCE_NUMBER" => sequence = Some(index),
                _ => return false,
            }
            true
        })?;
        if !extra.is_empty() {
            return Err(Mismatch::Extra(format!(
                "Input schema has more fields than BigQuery schema, extra fields: '{}'",
                extra.join(",")
            )));
        }
        for index in [change_type, sequence].into_iter().flatten() {
            if !matches!(root.fields[index].proto, Proto::Text) || root.fields[index].repeated {
                return Err(Mismatch::Invalid(format!("Field {} must be a string", root.fields[index].name)));
            }
        }
        root.index(descriptor);
        Ok(Self { root, change_type, sequence })
    }
}

impl Message {
    /// The field of a number.
    #[inline]
    pub(crate) fn field(&self, number: u32) -> Option<usize> {
        match self.direct.get(number as usize) {
            Some(&index) => (index != u32::MAX).then_some(index as usize),
            None => self.others.get(&number).copied(),
        }
    }

    /// Fields by their numbers; they are in the descriptor's order.
    fn index(&mut self, descriptor: &Descriptor) {
        for (index, field) in descriptor.field.iter().enumerate() {
            let number = field.number.cast_unsigned();
            if (number as usize) < DIRECT {
                if self.direct.len() <= number as usize {
                    self.direct.resize(number as usize + 1, u32::MAX);
                }
                self.direct[number as usize] = index as u32;
            } else {
                self.others.insert(number, index);
            }
        }
    }
}

/// The types that lie in a descriptor, by their names from the root.
struct Types<'a> {
    messages: HashMap<String, &'a Descriptor>,
    enums: HashMap<String, HashMap<i32, String>>,
}

impl<'a> Types<'a> {
    fn collect(&mut self, descriptor: &'a Descriptor, parent: &str, depth: usize) {
        let name =
            if parent.is_empty() { descriptor.name.clone() } else { format!("{parent}.{}", descriptor.name) };
        for kind in &descriptor.enum_type {
            let values = kind.value.iter().map(|v| (v.number, v.name.clone())).collect();
            self.enums.insert(format!("{name}.{}", kind.name), values);
        }
        if depth < 100 {
            for nested in &descriptor.nested_type {
                self.collect(nested, &name, depth + 1);
            }
        }
        self.messages.insert(name, descriptor);
    }

    /// What a type's name means: whole, or any end of a known one.
    fn find<'m, T>(map: &'m HashMap<String, T>, name: &str) -> Option<&'m T> {
        let name = name.trim_start_matches('.');
        if let Some(found) = map.get(name) {
            return Some(found);
        }
        let ends = |long: &str, short: &str| {
            long.strip_suffix(short).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let mut found = map.iter().filter(|(known, _)| ends(known, name) || ends(name, known));
        found.next().map(|(_, value)| value)
    }

    fn message(
        &self,
        descriptor: &Descriptor,
        columns: &[Column],
        path: &str,
        extra: &mut Vec<String>,
        special: &mut dyn FnMut(&FieldDescriptor, usize) -> bool,
    ) -> Result<Message, Mismatch> {
        let mut message = Message {
            fields: Vec::new(),
            columns: vec![None; columns.len()],
            direct: Vec::new(),
            others: HashMap::new(),
        };
        for (index, field) in descriptor.field.iter().enumerate() {
            let name = field.options.as_ref().and_then(|o| o.column_name.as_deref()).unwrap_or(&field.name);
            let (repeated, required) = (field.label == 3, field.label == 2);
            let place = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            let proto = if special(field, index) {
                self.proto(field, None, &place, extra)?
            } else {
                match schema::find(columns, name) {
                    Some((column_index, column)) => {
                        if message.columns[column_index].replace(index).is_some() {
                            return Err(Mismatch::Invalid(format!("Two fields are for column {place}")));
                        }
                        if repeated != (column.mode == Mode::Repeated) {
                            return Err(Mismatch::Invalid(format!(
                                "The proto field mismatched with BigQuery field at {place}, the proto field mode {}, BigQuery \
                                 field mode {:?}",
                                if repeated { "repeated" } else { "optional" },
                                column.mode
                            )));
                        }
                        self.proto(field, Some(column), &place, extra)?
                    }
                    None => {
                        extra.push(place);
                        Proto::Bytes
                    }
                }
            };
            message.fields.push(Field { name: name.to_owned(), proto, repeated, required });
        }
        message.index(descriptor);
        Ok(message)
    }

    fn proto(
        &self,
        field: &FieldDescriptor,
        column: Option<&Column>,
        place: &str,
        extra: &mut Vec<String>,
    ) -> Result<Proto, Mismatch> {
        let mismatch = |what: &str| {
            let wanted = column.map_or_else(|| "STRING".to_owned(), Column::sql_type);
            Mismatch::Invalid(format!(
                "The proto field mismatched with BigQuery field at {place}, the proto field type {what}, BigQuery field type \
                 {wanted}"
            ))
        };
        if field.kind == 11 {
            let simple = field.type_name.trim_start_matches('.');
            if let Some(known) = well_known(simple) {
                let fits = column.is_some_and(|c| known.fits(&c.ty));
                return if fits { Ok(known) } else { Err(mismatch(simple)) };
            }
            let descriptor = Self::find(&self.messages, &field.type_name).ok_or_else(|| {
                Mismatch::Invalid(format!(
                    "The descriptor has no message {} of field {place}",
                    field.type_name
                ))
            })?;
            let bounds;
            let columns = match column.map(|c| &c.ty) {
                Some(Type::Record(columns)) => columns,
                Some(Type::Range(bound)) => {
                    let bound = |name: &str| Column::new(name, (**bound).clone(), Mode::Nullable);
                    bounds = vec![bound("start"), bound("end")];
                    &bounds
                }
                _ => return Err(mismatch("message")),
            };
            let message = self.message(descriptor, columns, place, extra, &mut |_, _| false)?;
            return Ok(Proto::Message(Box::new(message)));
        }
        let proto = match field.kind {
            1 => Proto::Double,
            2 => Proto::Float,
            3 => Proto::Int64,
            4 => Proto::Uint64,
            5 => Proto::Int32,
            6 => Proto::Fixed64,
            7 => Proto::Fixed32,
            8 => Proto::Bool,
            9 => Proto::Text,
            12 => Proto::Bytes,
            13 => Proto::Uint32,
            14 => Proto::Enum(Self::find(&self.enums, &field.type_name).cloned().ok_or_else(|| {
                Mismatch::Invalid(format!("The descriptor has no enum {} of field {place}", field.type_name))
            })?),
            15 => Proto::Sfixed32,
            16 => Proto::Sfixed64,
            17 => Proto::Sint32,
            18 => Proto::Sint64,
            other => return Err(Mismatch::Invalid(format!("Field {place} has the unknown type {other}"))),
        };
        match column {
            Some(column) if !proto.fits(&column.ty) => Err(mismatch(proto.name())),
            _ => Ok(proto),
        }
    }
}

/// Google's messages that stand for scalars.
fn well_known(name: &str) -> Option<Proto> {
    let wrapper = |proto| Some(Proto::Wrapper(Box::new(proto)));
    match name.strip_prefix("google.protobuf.")? {
        "DoubleValue" => wrapper(Proto::Double),
        "FloatValue" => wrapper(Proto::Float),
        "Int64Value" => wrapper(Proto::Int64),
        "UInt64Value" => wrapper(Proto::Uint64),
        "Int32Value" => wrapper(Proto::Int32),
        "UInt32Value" => wrapper(Proto::Uint32),
        "BoolValue" => wrapper(Proto::Bool),
        "StringValue" => wrapper(Proto::Text),
        "BytesValue" => wrapper(Proto::Bytes),
        "Timestamp" => Some(Proto::Moment),
        "Duration" => Some(Proto::Duration),
        _ => None,
    }
}

impl Proto {
    fn name(&self) -> &'static str {
        match self {
            Self::Double => "double",
            Self::Float => "float",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Sint32 => "sint32",
            Self::Sint64 => "sint64",
            Self::Fixed64 => "fixed64",
            Self::Fixed32 => "fixed32",
            Self::Sfixed64 => "sfixed64",
            Self::Sfixed32 => "sfixed32",
            Self::Bool => "bool",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Enum(_) => "enum",
            Self::Wrapper(inner) => inner.name(),
            Self::Moment => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::Message(_) => "message",
        }
    }

    /// Whether a column of this type takes it, as in the documentation's table.
    fn fits(&self, ty: &Type) -> bool {
        if let Self::Wrapper(inner) = self {
            return inner.fits(ty);
        }
        let signed = matches!(
            self,
            Self::Int32 | Self::Int64 | Self::Sint32 | Self::Sint64 | Self::Sfixed32 | Self::Sfixed64
        );
        let small_unsigned = matches!(self, Self::Uint32 | Self::Fixed32);
        let unsigned = small_unsigned || matches!(self, Self::Uint64 | Self::Fixed64);
        let text = matches!(self, Self::Text);
        match ty {
            Type::Bool => matches!(self, Self::Bool) || signed || unsigned,
            Type::Int64 => signed || small_unsigned || matches!(self, Self::Enum(_)),
            Type::Float64 => matches!(self, Self::Double | Self::Float),
            Type::String => text || matches!(self, Self::Enum(_)),
            Type::Bytes => text || matches!(self, Self::Bytes),
            Type::Date => text || signed,
            Type::Datetime | Type::Time => {
                text || matches!(self, Self::Int64 | Self::Sint64 | Self::Sfixed64)
            }
            Type::Timestamp => text || signed || small_unsigned || matches!(self, Self::Moment),
            Type::Numeric | Type::Bignumeric => {
                text || signed || unsigned || matches!(self, Self::Bytes | Self::Double | Self::Float)
            }
            Type::Json | Type::Geography => text,
            Type::Interval => text || matches!(self, Self::Duration),
            Type::Range(_) | Type::Record(_) => matches!(self, Self::Message(_)),
        }
    }
}
