//! A YAML document as a tree that remembers where each part stands, with `${NAME}` filled in from the environment.
//!
//! Limits: one document, no tags, no anchors or aliases (a config needs none, and without them the tree is never larger
//! than the text); at most 1 MiB of text and 64 levels.

use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};

use super::problem::Problem;

const TEXT_BYTES_MAX: usize = 1 << 20;
const DEPTH_MAX: usize = 64;

/// Byte range in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// A part of the document.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) kind: NodeKind,
}

/// What a part is.
#[derive(Debug)]
pub(crate) enum NodeKind {
    Scalar(Scalar),
    Sequence(Vec<Node>),
    /// Keys are unique and in the order of the text.
    Mapping(Vec<(Node, Node)>),
}

/// A text, number, boolean or null.
pub(crate) struct Scalar {
    /// Its text after substitution.
    pub(crate) text: String,
    /// Unquoted, so it may be a number, a boolean or null.
    pub(crate) plain: bool,
    /// Something of it came from the environment, so it must not be shown.
    pub(crate) substituted: bool,
}

/// Hides what came from the environment.
impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.substituted { f.write_str("(from the environment)") } else { write!(f, "{:?}", self.text) }
    }
}

impl Node {
    /// The value of `key` in a mapping, with the key's own node.
    pub(crate) fn entry(&self, key: &str) -> Option<&(Node, Node)> {
        let NodeKind::Mapping(entries) = &self.kind else { return None };
        entries.iter().find(|(k, _)| k.text() == Some(key))
    }

    /// A scalar's text.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// Whether it is an unquoted `null`, `~` or nothing.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar(s) if s.plain && matches!(&*s.text, "" | "~" | "null"))
    }
}

/// One step into a document.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Step::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Step::Index(index)
    }
}

/// Where the deepest existing part of `path` stands: of a mapping's entry, its value if that is a scalar, else its key.
pub(crate) fn locate(root: &Node, path: &[Step]) -> Place {
    let mut place = root.place;
    let mut node = root;
    for step in path {
        match (step, &node.kind) {
            (Step::Key(key), _) => {
                let Some((key, value)) = node.entry(key) else { return place };
                place = if matches!(value.kind, NodeKind::Scalar(_)) { value.place } else { key.place };
                node = value;
            }
            (Step::Index(index), NodeKind::Sequence(items)) => {
                let Some(item) = items.get(*index) else { return place };
                place = Place { len: item.place.len.min(1), ..item.place };
                node = item;
            }
            _ => return place,
        }
    }
    place
}

/// Reads `text`. `environment` answers for `${NAME}`.
pub(crate) fn parse(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Node, Problem> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Problem::new(Place::default(), "the config is larger than 1 MiB"));
    }
    let mut reader = Reader { offsets: Offsets::of(text), events: Parser::new_from_str(text), environment };
    let mut root = None;
    loop {
        let (event, place) = reader.next()?;
        match event {
            Event::StreamEnd => break,
            Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
            Event::DocumentStart(_) if root.is_some() => {
                return Err(Problem::new(place, "a config is one YAML document; this starts another"));
            }
            Event::DocumentStart(_) => {}
            event => root = Some(reader.node(event, place, 0)?),
        }
    }
    root.filter(|node| !node.is_null()).ok_or_else(|| {
        Problem::new(Place::default(), "the config is empty; it needs at least `source` and `sinks`")
    })
}

struct Reader<'a> {
    offsets: Offsets,
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    environment: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Place), Problem> {
        match self.events.next_event() {
            Some(Ok((event, span))) => Ok((event, self.offsets.place(&span.start, &span.end))),
            Some(Err(e)) => {
                let place = self.offsets.place(e.marker(), e.marker());
                Err(Problem::new(place, format!("not YAML: {}", e.info())))
            }
            None => Ok((Event::StreamEnd, Place::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, place: Place, depth: usize) -> Result<Node, Problem> {
        if depth > DEPTH_MAX {
            return Err(Problem::new(place, "nested deeper than 64 levels"));
        }
        let (anchor, tag) = match &event {
            Event::Scalar(_, _, anchor, tag) => (*anchor, tag.is_some()),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => (*anchor, tag.is_some()),
            Event::Alias(id) => (*id, false),
            _ => (0, false),
        };
        if anchor != 0 {
            return Err(Problem::new(
                place,
                "anchors and aliases are not supported in a config; write the value out",
            ));
        }
        if tag {
            return Err(Problem::new(place, "tags are not supported in a config"));
        }
        let (kind, place) = match event {
            Event::Scalar(text, style, ..) => (NodeKind::Scalar(self.scalar(&text, style, place)?), place),
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, end) => break (NodeKind::Sequence(items), place.until(end)),
                        (event, place) => items.push(self.node(event, place, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => self.mapping(place, depth)?,
            other => return Err(Problem::new(place, format!("not YAML: {other:?} is out of place"))),
        };
        Ok(Node { place, kind })
    }

    fn mapping(&mut self, start: Place, depth: usize) -> Result<(NodeKind, Place), Problem> {
        let mut entries: Vec<(Node, Node)> = Vec::new();
        loop {
            let (event, place) = self.next()?;
            if let Event::MappingEnd = event {
                return Ok((NodeKind::Mapping(entries), start.until(place)));
            }
            let key = self.node(event, place, depth + 1)?;
            let Some(name) = key.text() else {
                return Err(Problem::new(key.place, "a key must be a text"));
            };
            if let Some((first, _)) = entries.iter().find(|(k, _)| k.text() == Some(name)) {
                let line = self.offsets.line(first.place.start);
                return Err(Problem::new(key.place, format!("`{name}` was given before, in line {line}")));
            }
            let (event, place) = self.next()?;
            let value = self.node(event, place, depth + 1)?;
            entries.push((key, value));
        }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, place: Place) -> Result<Scalar, Problem> {
        let plain = matches!(style, ScalarStyle::Plain);
        let filled = substitute(text, self.environment).map_err(|(message, help)| {
            let problem = Problem::new(place, message);
            if help.is_empty() { problem } else { problem.help(help) }
        })?;
        Ok(match filled {
            Some(text) => Scalar { text, plain, substituted: true },
            None => Scalar { text: text.to_owned(), plain, substituted: false },
        })
    }
}

impl Place {
    fn until(self, end: Place) -> Place {
        Place { start: self.start, len: (end.start + end.len).saturating_sub(self.start) }
    }
}

/// Fills in `${NAME}` and `${NAME:-default}`; `$${` stands for `${` itself. `None` where there was nothing to fill in.
fn substitute(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, (String, String)> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let Some(end) = inner.find('}') else {
            return Err((
                "`${` without its `}`".to_owned(),
                "write `$${` for the text `${` itself".to_owned(),
            ));
        };
        let (name, default) = match inner[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&inner[..end], None),
        };
        if name.starts_with("secret:") {
            return Err((
                "secret managers are not supported by this version".to_owned(),
                "put the secret into an environment variable and write ${NAME}".to_owned(),
            ));
        }
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err((
                "not the name of an environment variable".to_owned(),
                "write `${NAME}` or `${NAME:-default}`; `$${` for the text `${` itself".to_owned(),
            ));
        }
        match (environment(name), default) {
            (Some(value), _) if !value.is_empty() || default.is_none() => out.push_str(&value),
            (_, Some(default)) => out.push_str(default),
            _ => {
                return Err((
                    format!("the environment variable `{name}` is not set"),
                    format!("set it, or give a default: ${{{name}:-default}}"),
                ));
            }
        }
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok(Some(out))
}

/// Byte offset of each character and line, since the parser counts characters.
struct Offsets {
    chars: Vec<u32>,
    lines: Vec<u32>,
}

impl Offsets {
    fn of(text: &str) -> Self {
        let mut chars: Vec<u32> = text.char_indices().map(|(i, _)| i as u32).collect();
        chars.push(text.len() as u32);
        let lines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i as u32).collect();
        Self { chars, lines }
    }

    fn byte(&self, mark: &Marker) -> usize {
        let last = self.chars.len() - 1;
        self.chars[mark.index().min(last)] as usize
    }

    fn place(&self, start: &Marker, end: &Marker) -> Place {
        let (start, end) = (self.byte(start), self.byte(end));
        Place { start, len: end.saturating_sub(start) }
    }

    fn line(&self, byte: usize) -> usize {
        self.lines.partition_point(|&newline| (newline as usize) < byte) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(name: &str) -> Option<String> {
        match name {
            "HOME_DIR" => Some("/dir".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    fn fill(text: &str) -> Result<Option<String>, String> {
        substitute(text, &environment).map_err(|(message, _)| message)
    }

    #[test]
    fn the_environment_is_filled_in() {
        assert_eq!(fill("plain $ text"), Ok(None));
        assert_eq!(fill("${HOME_DIR}/a"), Ok(Some("/dir/a".to_owned())));
        assert_eq!(fill("${NONE:-b}${HOME_DIR:-c}${EMPTY:-d}"), Ok(Some("b/dird".to_owned())));
        assert_eq!(fill("a$${HOME_DIR}"), Ok(Some("a${HOME_DIR}".to_owned())));
        assert_eq!(fill("${NONE}").unwrap_err(), "the environment variable `NONE` is not set");
        assert!(fill("${secret:projects/p}").unwrap_err().contains("secret managers"));
        assert!(fill("${HOME_DIR").is_err());
        assert!(fill("${}").is_err());
    }

    #[test]
    fn places_are_bytes_even_after_wide_characters() {
        let text = "é: ü\nb: { c: [1, two] }\n";
        let root = parse(text, &environment).unwrap();
        let place = locate(&root, &["b".into(), "c".into(), 1.into()]);
        assert_eq!(&text[place.start..place.start + 3], "two");
        let place = locate(&root, &["é".into()]);
        assert_eq!(&text[place.start..place.start + place.len], "ü");
    }

    #[test]
    fn what_a_config_does_not_need_is_refused() {
        for text in [
            "a: &x 1\nb: *x\n",
            "a: !!str 1\n",
            "a: 1\n---\nb: 2\n",
            "a: 1\na: 2\n",
            "",
            "[a]: 1\n",
            "a: [1\n",
        ] {
            assert!(parse(text, &environment).is_err(), "{text:?}");
        }
        let deep = format!("a: {}1{}", "[".repeat(100), "]".repeat(100));
        assert!(parse(&deep, &environment).is_err());
    }
}
