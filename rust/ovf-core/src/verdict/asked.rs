//! What a report holds beyond the answer, where it was asked for: near misses, levels, losses and gradient norms.

use super::Assembler;
use crate::op::Rank;
use crate::report::{LevelCountReport, LevelReport, LevelsReport, NearReport, ReadingReport, TrendReport};
use crate::timeline::{Reading, Timeline};

/// Near misses listed.
const NEAR_LISTED: usize = 100;
/// Ops with a level listed.
const LEVELS_LISTED: usize = 200;

impl Assembler<'_> {
    /// All ranks' near misses in one order; those on ranks without an overflow rank like those before one.
    pub(super) fn near(&self) -> Vec<NearReport> {
        let mut all: Vec<(Rank, &crate::near::NearMiss)> =
            self.timelines.iter().flat_map(|t| t.near.iter().map(|m| (t.rank, m))).collect();
        all.sort_by(|a, b| a.1.compare(b.1).then(a.0.cmp(&b.0)).then(a.1.at.op.cmp(&b.1.at.op)));
        let report = |(rank, miss): (Rank, &crate::near::NearMiss)| NearReport {
            rank,
            op_name: miss.at.name.clone(),
            exec_order: miss.at.op,
            kind: miss.kind,
            slot: miss.slot.clone(),
            dtype: miss.dtype.strip_prefix("torch.").unwrap_or(&miss.dtype).to_owned(),
            shape: miss.shape.clone(),
            value: miss.value,
            limit: miss.limit,
            share: miss.share(),
            growth: miss.growth,
            before_first: miss.before_first,
        };
        all.into_iter().take(NEAR_LISTED).map(report).collect()
    }

    pub(super) fn levels(&self) -> Option<LevelsReport> {
        let mut counts: Vec<LevelCountReport> = Vec::new();
        let mut ops: Vec<LevelReport> = Vec::new();
        let mut total = 0;
        for timeline in self.timelines {
            let levels = timeline.levels.as_ref()?;
            for (place, (scene, level, count)) in levels.counts.iter().enumerate() {
                if place == counts.len() {
                    counts.push(LevelCountReport { scene: scene.clone(), level: *level, count: 0 });
                }
                counts[place].count += u64::from(*count);
                total += u64::from(*count);
            }
            ops.extend(levels.ops.iter().map(|o| LevelReport {
                rank: timeline.rank,
                op_name: o.at.name.clone(),
                exec_order: o.at.op,
                level: o.level,
                scene: o.scene.clone(),
                norm_ratio: o.norm_ratio,
            }));
        }
        ops.sort_by_key(|o| (o.level, o.exec_order, o.rank));
        ops.truncate(LEVELS_LISTED);
        let omitted = total.saturating_sub(ops.len() as u64);
        Some(LevelsReport { counts, ops, ops_omitted: omitted })
    }

    pub(super) fn trend(&self) -> Option<TrendReport> {
        if self.timelines.iter().any(|t| t.trend.is_none()) {
            return None;
        }
        let trends = || self.timelines.iter().filter_map(|t| Some((t, t.trend.as_ref()?)));
        let losses: Vec<(&Timeline, &Reading)> =
            trends().flat_map(|(t, trend)| trend.losses.iter().map(move |r| (t, r))).collect();
        let norms: Vec<(&Timeline, &Reading)> =
            trends().filter_map(|(t, trend)| Some((t, trend.gradient_norm.as_ref()?))).collect();
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        // f64::max passes NaN over; a norm that is NaN on one rank is NaN.
        let largest =
            |all: &[f64]| all.iter().fold(0.0_f64, |m, &n| if n.is_nan() || m.is_nan() { f64::NAN } else { m.max(n) });
        Some(TrendReport { loss: reading(&losses, mean), gradient_norm: reading(&norms, largest) })
    }
}

/// One number for the step; the op is the first that gave out something non-finite, else the first.
fn reading(all: &[(&Timeline, &Reading)], combine: impl Fn(&[f64]) -> f64) -> Option<ReadingReport> {
    let values: Vec<f64> = all.iter().filter_map(|(_, r)| r.value).collect();
    let shown = all.iter().find(|(_, r)| r.value.is_some_and(|v| !v.is_finite())).or(all.first())?;
    let at = shown.1.at.as_ref();
    Some(ReadingReport {
        value: Some(combine(&values)),
        count: values.len() as u64,
        rank: shown.0.rank,
        op_name: at.map(|a| a.name.clone()),
        exec_order: at.map(|a| a.op),
    })
}
