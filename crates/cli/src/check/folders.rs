//! Can a run write where the plan tells it to?

use std::path::{Path, PathBuf};

use super::{Finding, Level};
use crate::plan::Plan;

/// Folders that cannot be written to.
pub(super) fn findings(plan: &Plan) -> Vec<Finding> {
    let mut folders: Vec<(String, PathBuf)> = vec![
        ("checkpoint.directory".to_owned(), plan.checkpoint.directory.clone()),
        ("dead_letters.directory".to_owned(), plan.dead_letters.clone()),
    ];
    for (name, duckdb) in plan.duckdb_sinks() {
        let folder = duckdb.path.parent().unwrap_or(Path::new(".")).to_owned();
        folders.push((format!("path of sink {name}"), folder));
    }
    folders.iter().filter_map(|(key, folder)| finding(key, folder)).collect()
}

fn finding(key: &str, folder: &Path) -> Option<Finding> {
    // What is not there yet will be made in the nearest folder that is.
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let why = if existing.is_dir() {
        try_writing(existing).err()?.to_string()
    } else {
        "it is no folder".to_owned()
    };
    Some(Finding {
        level: Level::Error,
        code: "unwritable_folder",
        table: None,
        text: format!("{key}: cannot write in {}: {why}", existing.display()),
        detail: String::new(),
        remedy: "choose another place, or give the user that runs the pipeline the right to write there"
            .to_owned(),
    })
}

fn try_writing(folder: &Path) -> std::io::Result<()> {
    let file = folder.join(format!(".millstream-check-{}", std::process::id()));
    std::fs::OpenOptions::new().write(true).create_new(true).open(&file)?;
    std::fs::remove_file(&file)
}
