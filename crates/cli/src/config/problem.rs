//! What is wrong with a config, with its place in the file.

use std::fmt;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity, SourceCode,
};

use super::document::Place;

/// One thing that is wrong, or doubtful, and where. Never holds values that came from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) place: Place,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl Problem {
    /// A problem at `place`.
    pub(crate) fn new(place: Place, message: impl Into<String>) -> Self {
        Self { place, message: message.into(), help: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// All that is wrong with one file.
#[derive(Debug)]
pub(crate) struct Problems {
    /// The file's path, as the user gave it.
    pub(crate) file: String,
    /// Its text; empty if it could not be read.
    pub(crate) text: String,
    /// What is wrong; not empty.
    pub(crate) problems: Vec<Problem>,
}

impl Problems {
    /// A file that could not be read at all.
    pub(crate) fn unreadable(file: &str, why: impl fmt::Display) -> Self {
        let problem = Problem::new(Place::default(), format!("cannot read the config: {why}"));
        Self { file: file.to_owned(), text: String::new(), problems: vec![problem] }
    }

    /// The problems for a person: message, file with line and column, the lines concerned, help.
    pub(crate) fn render(&self, color: bool) -> String {
        let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(110).with_links(false);
        let mut out = String::new();
        for problem in &self.problems {
            let report =
                Report { file: self, source: NamedSource::new(&self.file, self.text.clone()), problem };
            // Writing into a String fails only if a Display implementation does, and ours do not.
            let _ = handler.render_report(&mut out, &report);
        }
        out
    }

    /// Line and column of a place, from 1.
    pub(crate) fn line_column(&self, place: Place) -> (usize, usize) {
        let before = self.text.get(..place.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }
}

#[derive(Debug)]
struct Report<'a> {
    file: &'a Problems,
    source: NamedSource<String>,
    problem: &'a Problem,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.file.text.is_empty() {
            return write!(f, "{}: {}", self.file.file, self.problem.message);
        }
        let (line, column) = self.file.line_column(self.problem.place);
        write!(f, "{}:{line}:{column}: {}", self.file.file, self.problem.message)
    }
}

impl std::error::Error for Report<'_> {}

impl Diagnostic for Report<'_> {
    fn severity(&self) -> Option<Severity> {
        Some(Severity::Error)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.problem.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        (!self.file.text.is_empty()).then_some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let Place { start, len } = self.problem.place;
        // A part of several lines is marked at its first line only: the frame would swallow the file otherwise.
        let line_end = self.file.text.get(start..).and_then(|rest| rest.find('\n')).unwrap_or(len);
        let label = LabeledSpan::new(Some("here".to_owned()), start, len.min(line_end));
        Some(Box::new(std::iter::once(label)))
    }
}
