//! Places: finds steps and rank folders.
//!
//! In: a path from the user. Out: [`Step`]s with one [`RankSource`] a rank. This room and [`crate::bytes`] are the only
//! ones that touch the file system. Neither writes. Steps are found by the same rules ([`layout`]) in a list of names:
//! what an archive holds, what an object store lists, what lies on the disks of several hosts.
//!
//! A file may be packed ([`crate::unpack`]): `dump.json.gz` or `dump.json.zst` stands for a `dump.json` that is not
//! there, and likewise for the other files.
//!
//! Layouts (`docs/dump-format.md`, directories):
//! a *dump root* holds `step<N>` folders, itself or below phase folders (`actor_train/step0`, `graph/step0`); a
//! *step* holds `rank<R>` folders, or `rank` (rank 0), or `proc<pid>`/`pid<pid>` when torch.distributed was never
//! started; a *rank folder* holds `dump.json` (or `debug.json`). In a step a written summary, `rank<R>.ovfs`, stands for
//! a rank folder that is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::op::Rank;
use crate::unpack::PACKED;

/// How the names of written summaries end: `rank3.ovfs`.
pub(crate) const SUMMARY_SUFFIX: &str = ".ovfs";

/// How deep phase folders above the steps may nest.
const PHASE_DEPTH: usize = 3;

/// Files that hold a rank's ops, the first that is there.
const DUMPS: [&str; 2] = ["dump.json", "debug.json"];

/// One rank's folder or lone file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankSource {
    /// Global rank.
    pub rank: Rank,
    /// Folder name as on disk (`rank3`, `proc512`), or the file's name.
    pub label: String,
    /// The dump file, or the written summary.
    pub dump: PathBuf,
    /// Where `construct.json` would be.
    pub construct: PathBuf,
    /// Where `stack.json` would be.
    pub stack: PathBuf,
}

/// One training step with its ranks, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The number in `step<N>`; `None` when the path names no step.
    pub number: Option<u64>,
    /// Folder below the dump root (`step0`, `actor_train/step0`); the last path component otherwise.
    pub label: String,
    /// The folder.
    pub path: PathBuf,
    /// Ranks with a folder.
    pub ranks: Vec<RankSource>,
    /// Whether the path names one rank of the step: the others are left out by choice.
    pub single: bool,
    /// What was passed over and why.
    pub notes: Vec<String>,
}

/// All steps that `path` holds, in order of (phase, number). `path` is a dump root, a step, a rank folder or one
/// dump file.
///
/// # Errors
/// [`ErrorKind::NotFound`] and [`ErrorKind::Io`] from the file system, [`ErrorKind::NotADump`] when no layout fits.
pub(crate) fn discover_one(path: &Path) -> Result<Vec<Step>> {
    let meta = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?;
    if meta.is_file() {
        return Ok(vec![single_file(path)]);
    }
    in_tree(path, &Disk)
}

/// All steps in a list of names, by the rules of [`discover`].
///
/// `root` is the path that stands for the folder the names are below; only its text counts, nothing is opened. A name
/// is relative to it, `/` between parts, and ends in `/` for a folder.
///
/// # Errors
/// [`ErrorKind::NotADump`] when no layout fits.
pub fn layout(root: &Path, names: &[String]) -> Result<Vec<Step>> {
    in_tree(root, &Names::new(root, names))
}

fn in_tree(path: &Path, tree: &impl Tree) -> Result<Vec<Step>> {
    let name = file_name(path);
    if let Some(dump) = dump_file(path, tree) {
        let rank = rank_of(&name).unwrap_or(0);
        let (number, label) = step_of_parent(path);
        let source = RankSource::in_folder(rank, name, path, dump);
        return Ok(vec![Step {
            number,
            label,
            path: path.to_path_buf(),
            ranks: vec![source],
            single: true,
            notes: Vec::new(),
        }]);
    }
    let mut steps = Vec::new();
    collect_steps(path, path, PHASE_DEPTH, &mut steps, tree)?;
    if steps.is_empty() {
        let text = if name.starts_with("rank") || name.starts_with("proc") {
            "no dump.json in this rank folder"
        } else {
            "no msProbe dump here: expected step<N>/rank<R>/dump.json, rank<R>/dump.json or dump.json (or summaries, rank<R>.ovfs)"
        };
        return Err(Error::new(ErrorKind::NotADump, path, text)
            .with_help("give the dump_path of msProbe's config, a step folder, a rank folder or a dump.json"));
    }
    Ok(steps)
}

impl RankSource {
    /// Whether its file is a written summary, by its name.
    #[must_use]
    pub fn is_summary(&self) -> bool {
        summary_stem(&file_name(&self.dump)).is_some()
    }

    fn in_folder(rank: Rank, label: String, folder: &Path, dump: PathBuf) -> Self {
        Self { rank, label, dump, construct: folder.join("construct.json"), stack: folder.join("stack.json") }
    }
}

fn single_file(path: &Path) -> Step {
    let folder = path.parent().unwrap_or(Path::new(""));
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let name = file_name(&absolute);
    let (number, label) = step_of_parent(&absolute);
    let (rank, label_of_rank) = match (summary_rank(&file_name(path)), rank_of(&name)) {
        (Some(rank), _) => (rank, format!("rank{rank}")),
        (None, Some(rank)) => (rank, name),
        (None, None) => (0, file_name(path)),
    };
    // A summary lies in the step's folder itself, a dump in the rank's.
    let (number, label) = match summary_rank(&file_name(path)) {
        Some(_) => (step_number(&file_name(&absolute)), file_name(&absolute)),
        None => (number, label),
    };
    Step {
        number,
        label,
        path: path.to_path_buf(),
        ranks: vec![RankSource::in_folder(rank, label_of_rank, folder, path.to_path_buf())],
        single: true,
        notes: Vec::new(),
    }
}

/// `(7, "step7")` for `.../step7/rank0`, else the folder's own name.
fn step_of_parent(rank_folder: &Path) -> (Option<u64>, String) {
    let absolute = std::path::absolute(rank_folder).unwrap_or_else(|_| rank_folder.to_path_buf());
    match absolute.parent().map(file_name) {
        Some(name) if step_number(&name).is_some() => (step_number(&name), name),
        _ => (None, file_name(&absolute)),
    }
}

fn collect_steps(root: &Path, folder: &Path, depth: usize, steps: &mut Vec<Step>, tree: &impl Tree) -> Result<()> {
    let entries = tree.list(folder)?;
    if let Some((ranks, notes)) = rank_folders(folder, &entries, tree) {
        let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
        let number = step_number(&file_name(&absolute));
        let below = folder.strip_prefix(root).ok().filter(|p| !p.as_os_str().is_empty());
        let label = below.map_or_else(|| file_name(&absolute), |p| p.to_string_lossy().into_owned());
        steps.push(Step { number, label, path: folder.to_path_buf(), ranks, single: false, notes });
        return Ok(());
    }
    if depth == 0 {
        return Ok(());
    }
    let mut below: Vec<_> = entries.iter().filter(|n| tree.is_folder(&folder.join(n))).collect();
    below.sort_by_key(|n| (step_number(n).is_some(), step_number(n), (*n).clone()));
    for name in below {
        // A folder that cannot be listed below the root is no step of ours.
        let _ = collect_steps(root, &folder.join(name), depth - 1, steps, tree);
    }
    Ok(())
}

/// The ranks of a step folder, or `None` when it is not one.
fn rank_folders(folder: &Path, entries: &[String], tree: &impl Tree) -> Option<(Vec<RankSource>, Vec<String>)> {
    let mut numbered: Vec<(Rank, &String)> = Vec::new();
    let mut processes: Vec<(u64, &String)> = Vec::new();
    let mut odd = Vec::new();
    // A link whose end is gone (another host's disk) is a rank that cannot be read, not one that was never there.
    let summaries: Vec<(Rank, &String)> = entries
        .iter()
        .filter_map(|n| Some((summary_rank(n).filter(|_| !tree.is_folder(&folder.join(n)))?, n)))
        .collect();
    for name in entries {
        if summary_stem(name).is_some() {
            continue;
        }
        if !name.starts_with("rank") && !name.starts_with("proc") && !name.starts_with("pid") {
            continue;
        }
        let path = folder.join(name);
        let may_be_a_rank = tree.is_folder(&path) || (rank_of(name).is_some() && !tree.is_file(&path));
        if !may_be_a_rank {
            continue;
        }
        if let Some(rank) = rank_of(name) {
            numbered.push((rank, name));
        } else if let Some(pid) = process_of(name) {
            processes.push((pid, name));
        } else {
            odd.push(name);
        }
    }
    if numbered.is_empty() && processes.is_empty() && summaries.is_empty() {
        return None;
    }
    let mut notes: Vec<String> =
        odd.iter().map(|n| format!("{n}: not a rank folder (expected rank<number>), passed over")).collect();
    numbered.sort();
    processes.sort();
    let mut ranks: Vec<RankSource> = Vec::new();
    let mut push = |rank: Rank, name: &String, notes: &mut Vec<String>| {
        if let Some(first) = ranks.iter().find(|r| r.rank == rank) {
            notes.push(format!("{name}: a second folder for rank {rank} beside {}, passed over", first.label));
            return;
        }
        let at = folder.join(name);
        let dump = dump_file(&at, tree).unwrap_or_else(|| at.join("dump.json"));
        ranks.push(RankSource::in_folder(rank, name.clone(), &at, dump));
    };
    if numbered.is_empty() {
        let many = processes.len() > 1;
        for (number, (_, name)) in processes.iter().enumerate() {
            push(number as Rank, name, &mut notes);
            if many {
                notes.push(format!("{name}: no rank number on disk, shown as rank {number}"));
            }
        }
    } else {
        for (rank, name) in numbered {
            push(rank, name, &mut notes);
        }
        for (_, name) in processes {
            notes.push(format!("{name}: a process folder beside rank folders, passed over"));
        }
    }
    let folders = ranks.len();
    for (rank, name) in summaries {
        let at = folder.join(name);
        if let Some(dumped) = ranks[..folders].iter().find(|r| r.rank == rank) {
            notes.push(format!("{name}: a summary beside the rank's dump in {}, passed over", dumped.label));
            continue;
        }
        ranks.push(RankSource::in_folder(rank, format!("rank{rank}"), folder, at));
    }
    ranks.sort_by_key(|r| r.rank);
    Some((ranks, notes))
}

/// `rank3` of `rank3.ovfs`.
fn summary_stem(name: &str) -> Option<&str> {
    name.strip_suffix(SUMMARY_SUFFIX)
}

fn summary_rank(name: &str) -> Option<Rank> {
    summary_stem(name).and_then(rank_of)
}

/// `rank7`, `rank_7` -> 7; `rank` -> 0.
fn rank_of(name: &str) -> Option<Rank> {
    let tail = name.strip_prefix("rank")?;
    if tail.is_empty() {
        return Some(0);
    }
    digits(tail.strip_prefix('_').unwrap_or(tail)).and_then(|n| Rank::try_from(n).ok())
}

fn process_of(name: &str) -> Option<u64> {
    digits(name.strip_prefix("proc").or_else(|| name.strip_prefix("pid"))?)
}

pub(crate) fn step_number(name: &str) -> Option<u64> {
    digits(name.strip_prefix("step")?)
}

fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) { None } else { text.parse().ok() }
}

/// The rank's dump: plain before packed.
fn dump_file(folder: &Path, tree: &impl Tree) -> Option<PathBuf> {
    let packed = PACKED.iter().flat_map(|end| DUMPS.iter().map(move |name| format!("{name}{end}")));
    let mut names = DUMPS.iter().map(ToString::to_string).chain(packed);
    names.find_map(|name| Some(folder.join(name)).filter(|path| tree.is_file(path)))
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.to_string_lossy().into_owned(), |n| n.to_string_lossy().into_owned())
}

/// Where folders and files are looked up.
trait Tree {
    /// Names in a folder, ascending.
    fn list(&self, folder: &Path) -> Result<Vec<String>>;
    fn is_folder(&self, path: &Path) -> bool;
    fn is_file(&self, path: &Path) -> bool;
}

/// The file system.
struct Disk;

impl Tree for Disk {
    fn list(&self, folder: &Path) -> Result<Vec<String>> {
        let read = std::fs::read_dir(folder).map_err(|e| Error::io(folder, &e))?;
        let mut names: Vec<String> =
            read.filter_map(std::result::Result::ok).map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(names)
    }

    fn is_folder(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn is_file(&self, path: &Path) -> bool {
        path.is_file()
    }
}

/// A list of names.
struct Names {
    files: BTreeSet<PathBuf>,
    folders: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Names {
    fn new(root: &Path, names: &[String]) -> Self {
        let mut files = BTreeSet::new();
        let mut folders = BTreeMap::from([(root.to_path_buf(), BTreeSet::new())]);
        for name in names {
            let mut at = root.to_path_buf();
            let (above, last) = name.trim_end_matches('/').rsplit_once('/').unwrap_or(("", name.trim_end_matches('/')));
            let parts = above.split('/').map(|part| (part, true)).chain([(last, name.ends_with('/'))]);
            for (part, folder) in parts.filter(|(part, _)| !part.is_empty()) {
                folders.entry(at.clone()).or_insert_with(BTreeSet::new).insert(part.to_owned());
                at.push(part);
                if folder {
                    folders.entry(at.clone()).or_insert_with(BTreeSet::new);
                } else {
                    files.insert(at.clone());
                }
            }
        }
        Self { files, folders }
    }
}

impl Tree for Names {
    fn list(&self, folder: &Path) -> Result<Vec<String>> {
        let names = self.folders.get(folder);
        names
            .map(|n| n.iter().cloned().collect())
            .ok_or_else(|| Error::new(ErrorKind::NotFound, folder, "no such file or directory"))
    }

    fn is_folder(&self, path: &Path) -> bool {
        self.folders.contains_key(path)
    }

    fn is_file(&self, path: &Path) -> bool {
        self.files.contains(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::discover;

    fn tree(files: &[&str]) -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("ovf-source-{}-{n}", std::process::id()));
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
            std::fs::write(path, "{}").expect("write");
        }
        root
    }

    fn shape(root: &Path) -> Vec<(String, Vec<(Rank, String)>)> {
        let steps = discover_one(root).expect("a dump");
        steps.iter().map(|s| (s.label.clone(), s.ranks.iter().map(|r| (r.rank, r.label.clone())).collect())).collect()
    }

    #[test]
    fn process_folders_beside_ranks_are_passed_over() {
        let root = tree(&[
            "step5/rank0/dump.json",
            "step5/rank1/dump.json",
            "step5/proc4711/dump.json",
            "step6/rank0/dump.json",
        ]);
        let found = shape(&root);
        assert_eq!(found[0], ("step5".into(), vec![(0, "rank0".into()), (1, "rank1".into())]));
        assert_eq!(found[1].0, "step6");
        assert!(discover_one(&root).expect("dump")[0].notes[0].contains("proc4711"));
    }

    #[test]
    fn phases_and_odd_names() {
        let root =
            tree(&["actor_train/step0/rank0/dump.json", "ref/step10/rank/dump.json", "ref/step2/pid9527/dump.json"]);
        let found = shape(&root);
        let labels: Vec<&str> = found.iter().map(|s| s.0.as_str()).collect();
        assert_eq!(labels, ["actor_train/step0", "ref/step2", "ref/step10"]);
        assert_eq!(found[1].1, vec![(0, "pid9527".to_owned())]);
        assert_eq!(found[2].1, vec![(0, "rank".to_owned())]);
        let root = tree(&["step0/rank1/dump.json", "step0/rankabc/dump.json"]);
        assert_eq!(shape(&root)[0].1.len(), 1);
    }

    #[test]
    fn a_rank_folder_and_a_file_are_single_ranks() {
        let root = tree(&["step3/rank7/dump.json"]);
        for path in [root.join("step3/rank7"), root.join("step3/rank7/dump.json")] {
            let steps = discover_one(&path).expect("a dump");
            assert_eq!((steps[0].number, steps[0].ranks[0].rank), (Some(3), 7));
        }
        assert_eq!(discover_one(&root.join("nothing")).expect_err("missing").kind, ErrorKind::NotFound);
        let empty = tree(&["a/b.txt"]);
        assert_eq!(discover_one(&empty).expect_err("no dump").kind, ErrorKind::NotADump);
    }

    #[test]
    fn a_list_of_names_is_laid_out_as_the_same_files_on_disk() {
        let files = [
            "dump/actor_train/step1/rank_0/dump.json",
            "dump/actor_train/step1/rank1/debug.json.zst",
            "dump/actor_train/step1/rank2/construct.json",
            "dump/actor_train/step1/rankx/dump.json",
            "dump/actor_train/step1/proc99/dump.json",
            "dump/ref/step10/pid77/dump.json.gz",
            "dump/ref/step2/rank/dump.json",
        ];
        let disk = tree(&files).join("dump");
        let names: Vec<String> = files.iter().map(|f| f.trim_start_matches("dump/").to_owned()).collect();
        for below in ["", "actor_train", "actor_train/step1", "actor_train/step1/rank1", "ref/step10"] {
            let root = if below.is_empty() { disk.clone() } else { disk.join(below) };
            let prefix = if below.is_empty() { String::new() } else { format!("{below}/") };
            let below: Vec<String> = names.iter().filter_map(|n| n.strip_prefix(&prefix)).map(str::to_owned).collect();
            assert_eq!(layout(&root, &below).expect("a dump"), discover(&root).expect("a dump"));
        }
        assert_eq!(layout(&disk, &[]).expect_err("nothing").kind, ErrorKind::NotADump);
        for hostile in ["..", "../../rank0/dump.json", "/", "//rank0//dump.json", "", "rank0/../dump.json"] {
            let _ = layout(&disk, &[hostile.to_owned()]); // any answer, no panic
        }
    }

    #[test]
    fn a_packed_dump_is_found_where_there_is_no_plain_one() {
        let root = tree(&["step0/rank0/dump.json.gz", "step0/rank1/dump.json", "step0/rank1/dump.json.gz"]);
        let step = &discover(&root).expect("a dump")[0];
        assert!(step.ranks[0].dump.ends_with("dump.json.gz"));
        assert!(step.ranks[1].dump.ends_with("rank1/dump.json"));
    }
}
