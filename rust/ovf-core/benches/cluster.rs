//! Matching and ordering of a whole cluster: 1,024 ranks with 2,000 communications each, from timelines alone.
//!
//! `cargo bench -p ovf-core --bench cluster`. Two steps with one overflow that everybody gets to see:
//! *mixed* is tensor × data × pipeline parallel 8 × 8 × 16 (`all_reduce` in tensor groups, sends between stages, `all_reduce`
//! in data groups); *one group* has every communication in the group of all ranks.

use std::fmt::Write;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use ovf_core::{Rules, Timeline, build, match_communications, order};

const RANKS: u32 = 1024;
const COMMUNICATIONS: u32 = 2000;
const TENSOR: u32 = 8;
const DATA: u32 = 8;
const STAGES: u32 = 16;
/// The rank that overflows, and before which of its communications.
const STRUCK: (u32, u32) = (421, 700);

fn value(bad: bool) -> String {
    let max = if bad { "NaN" } else { "1.5" };
    format!(
        r#"{{"type":"torch.Tensor","dtype":"torch.bfloat16","shape":[1,2048,4096],"Max":{max},"Min":{max},"Mean":0.1,"Norm":3.0}}"#
    )
}

fn group(ranks: &[u32]) -> String {
    let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!(
        r#"{{"group":{{"type":"torch.ProcessGroup","group_ranks":[{}],"group_id":"g{}"}}}}"#,
        list.join(","),
        ranks[0]
    )
}

/// One rank's dump text.
struct Text {
    out: String,
    calls: [u32; 3],
}

impl Text {
    fn entry(&mut self, name: &str, args: &str, kwargs: &str, output: &str) {
        let comma = if self.out.ends_with('{') { "" } else { "," };
        let _ = write!(
            self.out,
            r#"{comma}"{name}":{{"input_args":[{args}],"input_kwargs":{kwargs},"output":[{output}]}}"#
        );
    }

    fn all_reduce(&mut self, ranks: &str, given: bool, got: bool) {
        self.calls[0] += 1;
        let name = format!("Distributed.all_reduce.{}.forward", self.calls[0]);
        self.entry(&name, &value(given), ranks, &value(got));
    }

    fn send(&mut self, to: u32, bad: bool) {
        self.calls[1] += 1;
        let name = format!("Distributed.send.{}.forward", self.calls[1]);
        let peer = format!(r#"{},{{"type":"int","value":{to}}}"#, value(bad));
        self.entry(&name, &peer, "{}", &peer);
    }

    fn receive(&mut self, from: u32, bad: bool) {
        self.calls[2] += 1;
        let name = format!("Distributed.recv.{}.forward", self.calls[2]);
        let of = |bad| format!(r#"{},{{"type":"int","value":{from}}}"#, value(bad));
        self.entry(&name, &of(false), "{}", &of(bad));
    }
}

/// The timeline of one rank; `one_group` puts all communications in the group of all ranks.
fn rank(rank: u32, one_group: bool, rules: &Rules) -> Timeline {
    let mut text = Text { out: r#"{"task":"statistics","level":"L1","data":{"#.to_owned(), calls: [0; 3] };
    let (t, d, p) = (rank % TENSOR, rank / TENSOR % DATA, rank / (TENSOR * DATA));
    let tensor_group = group(&(0..TENSOR).map(|i| i + TENSOR * (d + DATA * p)).collect::<Vec<_>>());
    let data_group = group(&(0..DATA).map(|i| t + TENSOR * (i + DATA * p)).collect::<Vec<_>>());
    // No group named: the default group of all ranks, as `dist.all_reduce(x)` records it.
    let world = "{}";
    let stride = TENSOR * DATA;
    for call in 0..COMMUNICATIONS {
        if (rank, call) == STRUCK {
            text.entry("Torch.exp.0.forward", &value(false), "{}", &value(true));
        }
        // Bad from here on: the struck rank's own gift first, then everybody's.
        let given = call > STRUCK.1 || (rank, call) == STRUCK;
        let got = call >= STRUCK.1;
        if one_group {
            text.all_reduce(world, given, got);
            continue;
        }
        match call % 10 {
            0 if p > 0 => text.receive(rank - stride, got && call > STRUCK.1),
            9 if p + 1 < STAGES => text.send(rank + stride, given),
            8 => text.all_reduce(&data_group, given, got),
            _ => text.all_reduce(&tensor_group, given, got),
        }
    }
    text.out.push_str("}}");
    build(text.out.as_bytes(), rank, &format!("rank{rank}"), rules)
}

fn cluster(c: &mut Criterion) {
    let rules = Rules::built_in();
    let mut measured = c.benchmark_group("1,024 ranks x 2,000 communications");
    measured.sample_size(10).measurement_time(Duration::from_secs(20)).warm_up_time(Duration::from_millis(500));
    for (name, one_group) in [("mixed", false), ("one group", true)] {
        let timelines: Vec<Timeline> = (0..RANKS).map(|r| rank(r, one_group, &rules)).collect();
        assert!(
            timelines.iter().all(|t| t.events.len() as u32 >= COMMUNICATIONS * 9 / 10),
            "all communications are read"
        );
        measured.bench_function(format!("{name}: match"), |b| b.iter(|| match_communications(black_box(&timelines))));
        let matching = match_communications(&timelines);
        assert!(
            matching.matches.iter().all(|m| m.missing.is_empty() && m.absent.is_empty()),
            "all communications match"
        );
        measured.bench_function(format!("{name}: order"), |b| b.iter(|| order(black_box(&timelines), &matching)));
    }
    measured.finish();
}

criterion_group!(benches, cluster);
criterion_main!(benches);
