//! The rooms that touch a rank's bytes, each alone, on one rank's dump of about 8 MB in msProbe's layout.
//!
//! `cargo bench -p ovf-core --features bench --bench rooms`; `OVF_BENCH_DUMP=path/to/dump.json` times a dump of your own.

mod dump;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ovf_core::{Rules, bench, build, scan};

fn rooms(c: &mut Criterion) {
    let bytes = match std::env::var_os("OVF_BENCH_DUMP") {
        Some(path) => std::fs::read(path).expect("the dump that OVF_BENCH_DUMP names"),
        None => dump::of(8 << 20, &dump::Layout::MSPROBE, 0.0),
    };
    let index = scan(&bytes);
    let rules = Rules::built_in();
    let mut group = c.benchmark_group("rank");
    group.throughput(Throughput::Bytes(bytes.len() as u64)).sample_size(20);
    let bodies: Vec<usize> = index.entries.iter().map(|e| e.body_at()).collect();
    for engine in bench::engines() {
        group.bench_function(format!("structural/{engine}"), |b| {
            b.iter(|| bodies.iter().filter_map(|&at| bench::skip(&engine, &bytes, at)).filter(|s| s.1).count());
        });
    }
    group.bench_function("scan", |b| b.iter(|| scan(black_box(&bytes))));
    group.bench_function("parse every op", |b| b.iter(|| bench::parse_all(black_box(&bytes), &index)));
    group.bench_function("timeline", |b| b.iter(|| build(black_box(&bytes), 0, "rank0", &rules)));
    group.finish();

    // What the contents and the layout cost.
    let mut group = c.benchmark_group("timeline of");
    group.sample_size(20);
    let kinds = [
        ("one NaN", dump::of(8 << 20, &dump::Layout::MSPROBE, 0.0)),
        ("every op NaN", dump::of(8 << 20, &dump::Layout::MSPROBE, 1.0)),
        ("compact", dump::of(4 << 20, &dump::Layout::COMPACT, 0.0)),
        ("4 spaces", dump::of(16 << 20, &dump::Layout::WIDE, 0.0)),
    ];
    for (name, bytes) in kinds {
        group.throughput(Throughput::Elements(scan(&bytes).entries.len() as u64));
        group.bench_function(name, |b| b.iter(|| build(black_box(&bytes), 0, "rank0", &rules)));
    }
    group.finish();
}

criterion_group!(benches, rooms);
criterion_main!(benches);
