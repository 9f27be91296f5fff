//! A folder with a config, and the command run in it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What a command printed and how it ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Asserts that it ended well.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}\n{}", self.out, self.err);
        self
    }

    /// What it printed, as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}\n{}\n{}", self.out, self.err))
    }
}

/// The folder of shipped events.
pub(crate) fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus").join(name)
}

/// A folder that goes away with the test.
pub(crate) struct Workplace(tempfile::TempDir);

impl Workplace {
    /// A folder with `p.yaml`.
    pub(crate) fn new(config: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("p.yaml", config);
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(words).current_dir(self.0.path()).stdin(Stdio::null()).env("NO_COLOR", "1");
        command
    }

    /// Runs the command.
    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        Ended::of(self.command(words).output().unwrap())
    }

    /// Starts the command and waits until `ready` says so.
    pub(crate) fn start(&self, words: &[&str], ready: impl Fn() -> bool) -> Running {
        let child = self.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Running(Some(child));
        wait(|| {
            if running.0.as_mut().unwrap().try_wait().unwrap().is_some() {
                let ended = Ended::of(running.0.take().unwrap().wait_with_output().unwrap());
                panic!("{words:?} ended early\n{}\n{}", ended.out, ended.err);
            }
            ready()
        });
        running
    }

    /// What the command prints with the folder's own path left out.
    pub(crate) fn print(&self, words: &[&str]) -> String {
        let ended = self.run(words);
        let text = format!("{}{}exit code {}\n", ended.out, ended.err, ended.code);
        text.replace(&self.0.path().canonicalize().unwrap().display().to_string(), "")
            .replace(&self.0.path().display().to_string(), "")
    }
}

/// Waits for something that will come, for as long as a slow machine may need.
pub(crate) fn wait(mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !ready() {
        assert!(Instant::now() < end, "it did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A command that runs; it is ended with the test.
pub(crate) struct Running(Option<Child>);

impl Running {
    /// Sends a signal, e.g. `INT`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.0.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Waits for an end that comes by itself.
    pub(crate) fn end_by_itself(mut self) -> Ended {
        wait(|| self.0.as_mut().unwrap().try_wait().unwrap().is_some());
        self.end()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        Ended::of(self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
