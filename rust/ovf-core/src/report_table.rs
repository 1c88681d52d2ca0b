//! The tables `findings` and `communications`: a report, a row an item.
//!
//! In: the report as JSON (what crosses to Python, whoever made it). Out: one [`Batch`]. They hold what the report
//! lists: its `findings_omitted` and `communications_omitted` say what it does not.

use serde_json::Value;

use crate::number;
use crate::table::{Batch, Cell, ColumnField, ColumnKind, always, perhaps};

/// Columns of the table `findings`.
pub const FINDINGS: [ColumnField; 32] = [
    perhaps("step", ColumnKind::Large),
    always("place", ColumnKind::Whole),
    always("rank", ColumnKind::Whole),
    always("exec_order", ColumnKind::Whole),
    always("op_name", ColumnKind::Text),
    always("kind", ColumnKind::Word),
    always("certainty", ColumnKind::Word),
    always("severity", ColumnKind::Word),
    always("phase", ColumnKind::Word),
    always("reason", ColumnKind::Text),
    perhaps("slot", ColumnKind::Text),
    perhaps("module", ColumnKind::Text),
    perhaps("file", ColumnKind::Text),
    perhaps("line", ColumnKind::Whole),
    perhaps("function", ColumnKind::Text),
    perhaps("code", ColumnKind::Text),
    perhaps("likely", ColumnKind::Text),
    perhaps("check", ColumnKind::Text),
    always("concurrent", ColumnKind::Bool),
    always("only_in_recompute", ColumnKind::Bool),
    always("layer", ColumnKind::Whole),
    always("depth", ColumnKind::Whole),
    always("reach_ops", ColumnKind::Large),
    always("reach_ranks", ColumnKind::Whole),
    always("member_ranks", ColumnKind::List),
    always("missing_ranks", ColumnKind::List),
    perhaps("dtype", ColumnKind::Word),
    perhaps("shape", ColumnKind::List),
    perhaps("max", ColumnKind::Real),
    perhaps("min", ColumnKind::Real),
    perhaps("input_max", ColumnKind::Real),
    perhaps("input_min", ColumnKind::Real),
];

/// Columns of the table `communications`.
pub const COMMUNICATIONS: [ColumnField; 14] = [
    perhaps("step", ColumnKind::Large),
    always("place", ColumnKind::Whole),
    always("api", ColumnKind::Word),
    always("op_name", ColumnKind::Text),
    always("group_id", ColumnKind::Word),
    always("group_ranks", ColumnKind::List),
    always("seq", ColumnKind::Whole),
    always("state", ColumnKind::Word),
    always("verdict", ColumnKind::Word),
    always("member_ranks", ColumnKind::List),
    always("source_ranks", ColumnKind::List),
    always("propagated_ranks", ColumnKind::List),
    always("normal_ranks", ColumnKind::List),
    always("lost_ranks", ColumnKind::List),
];

fn text(value: &Value) -> Cell<'_> {
    value.as_str().into()
}

fn whole(value: &Value) -> Cell<'_> {
    value.as_u64().map_or(Cell::Null, Cell::Whole)
}

fn real(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str().and_then(number::of_word))
}

fn flag(value: &Value) -> Cell<'_> {
    value.as_bool().map_or(Cell::Null, Cell::Bool)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn numbers(value: &Value) -> Vec<i64> {
    items(value).iter().filter_map(Value::as_i64).collect()
}

fn ranks(members: &Value) -> Vec<i64> {
    items(members).iter().filter_map(|m| m["rank"].as_i64()).collect()
}

/// Largest Max and smallest Min; NaN beats both.
fn extremes(values: &Value) -> (Option<f64>, Option<f64>) {
    let pick = |key: &str, largest: bool| {
        let worse = |a: f64, b: f64| {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else if (a > b) == largest {
                a
            } else {
                b
            }
        };
        items(values).iter().filter_map(|v| real(&v[key])).reduce(worse)
    };
    (pick("max", true), pick("min", false))
}

/// The findings of a report, ranked; `place` counts from 0.
#[must_use]
pub fn findings(report: &Value) -> Batch {
    let mut batch = Batch::new(&FINDINGS);
    for (place, f) in items(&report["findings"]).iter().enumerate() {
        let is_bad = |v: &&Value| !matches!(v["class"].as_str(), Some("finite" | "unknown"));
        let outputs = items(&f["outputs"]);
        let shown = outputs.iter().find(is_bad).or(outputs.first()).unwrap_or(&Value::Null);
        let stack = items(&f["stack"]);
        let frame = stack.iter().find(|s| s["library"] == false).or(stack.first()).unwrap_or(&Value::Null);
        let (members, missing, shape) = (ranks(&f["members"]), numbers(&f["missing_ranks"]), numbers(&shown["shape"]));
        let (input_max, input_min) = extremes(&f["inputs"]);
        batch.push(&[
            whole(&f["step"]),
            Cell::Whole(place as u64),
            whole(&f["rank"]),
            whole(&f["exec_order"]),
            text(&f["op_name"]),
            text(&f["kind"]),
            text(&f["certainty"]),
            text(&f["severity"]),
            text(&f["phase"]),
            text(&f["reason"]),
            text(&f["slot"]),
            text(&f["module"]),
            text(&frame["file"]),
            whole(&frame["line"]),
            text(&frame["function"]),
            text(&frame["code"]),
            text(&f["hint"]["likely"]),
            text(&f["hint"]["check"]),
            flag(&f["concurrent"]),
            flag(&f["only_in_recompute"]),
            whole(&f["layer"]),
            whole(&f["depth"]),
            whole(&f["reach_ops"]),
            whole(&f["reach_ranks"]),
            Cell::List(&members),
            Cell::List(&missing),
            text(&shown["dtype"]),
            if shown.is_null() { Cell::Null } else { Cell::List(&shape) },
            real(&shown["max"]).into(),
            real(&shown["min"]).into(),
            input_max.into(),
            input_min.into(),
        ]);
    }
    batch
}

/// The communications a report lists, in order; `lost_ranks` are members not dumped, or dumped without the call.
#[must_use]
pub fn communications(report: &Value) -> Batch {
    let mut batch = Batch::new(&COMMUNICATIONS);
    for (place, c) in items(&report["communications"]).iter().enumerate() {
        let mut lost = numbers(&c["missing_ranks"]);
        lost.extend(numbers(&c["unmatched_ranks"]));
        lost.sort_unstable();
        let list = |key: &str| numbers(&c[key]);
        let (group, sources, propagated, normal) =
            (list("group_ranks"), list("source_ranks"), list("propagated_ranks"), list("normal_ranks"));
        let members = ranks(&c["members"]);
        batch.push(&[
            whole(&report["step"]),
            Cell::Whole(place as u64),
            text(&c["api"]),
            text(&c["op_name"]),
            text(&c["group_id"]),
            Cell::List(&group),
            whole(&c["seq"]),
            text(&c["state"]),
            text(&c["verdict"]),
            Cell::List(&members),
            Cell::List(&sources),
            Cell::List(&propagated),
            Cell::List(&normal),
            Cell::List(&lost),
        ]);
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TextForm;

    #[test]
    fn a_report_without_details_has_nulls() {
        let report = serde_json::json!({"step": null, "findings": [{
            "step": null, "rank": 1, "exec_order": 4, "op_name": "a", "kind": "compute", "certainty": "likely",
            "severity": "nan", "phase": "forward", "reason": "r", "slot": null, "module": null, "stack": [],
            "hint": null, "concurrent": false, "only_in_recompute": false, "layer": 0, "depth": 2, "reach_ops": 5,
            "reach_ranks": 1, "members": [], "missing_ranks": [3], "inputs": [{"max": "Infinity", "min": -1.5}],
            "outputs": [{"class": "finite", "dtype": "a", "shape": [1], "max": 1.0, "min": 0.5},
                        {"class": "nan", "dtype": "float16", "shape": [2, 3], "max": "NaN", "min": "NaN"}]}]});
        let text = TextForm::Csv.rows(&FINDINGS, &findings(&report));
        assert_eq!(
            text,
            ",0,1,4,a,compute,likely,nan,forward,r,,,,,,,,,false,false,0,2,5,1,[],[3],float16,\"[2,3]\",nan,nan,inf,-1.5\n"
        );
        assert_eq!(communications(&report).rows, 0);
    }
}
