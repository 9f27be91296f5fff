//! The process's own figures, as Linux tells them in `/proc/self`; elsewhere there are none.

use std::fs;

/// Clock ticks a second in what the kernel tells, on every architecture that Rust builds for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Figures of this process; `None` where the system does not tell.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) threads: Option<u64>,
    pub(crate) open_fds: Option<u64>,
    pub(crate) max_fds: Option<u64>,
    /// Since 1970.
    pub(crate) started_seconds: Option<f64>,
}

impl Process {
    pub(crate) fn now() -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let (stat, status) = (read("/proc/self/stat"), read("/proc/self/status"));
        // Behind the command's name, which may hold anything: field 3 of proc(5) comes first.
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map_or_else(Vec::new, |(_, rest)| rest.split(' ').collect());
        let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        let boot =
            || read("/proc/stat").lines().find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok());
        let of_status = |name: &str| -> Option<u64> {
            let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse().ok()
        };
        Self {
            cpu_seconds: ticks(14).zip(ticks(15)).map(|(user, system)| (user + system) / TICKS_PER_SECOND),
            resident_bytes: of_status("VmRSS:").map(|kib| kib * 1024),
            threads: of_status("Threads:"),
            // The folder's own handle is one of them.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count().saturating_sub(1) as u64),
            max_fds: read("/proc/self/limits").lines().find_map(|line| {
                line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok()
            }),
            started_seconds: ticks(22).and_then(|ticks| Some(boot()? + ticks / TICKS_PER_SECOND)),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn linux_tells_everything() {
        let process = Process::now();
        assert!(process.cpu_seconds.is_some() && process.max_fds.is_some());
        assert!(process.resident_bytes.unwrap() > 1 << 20);
        assert!(process.threads.unwrap() >= 1 && process.open_fds.unwrap() >= 3);
        // Between 2020 and 2100.
        assert!((1.5e9..4.1e9).contains(&process.started_seconds.unwrap()));
    }
}
