"""What must hold of the order and of the answer, whatever the dump."""

import json
import tempfile
from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

import ovf
import reference
from ovf.testing import Encoding, strategies, write_step
from programs import programs, step_of
from test_against_reference import some

ENCODINGS = strategies.encodings()


def report_of(step, **options):
    with tempfile.TemporaryDirectory() as folder:
        return ovf.find_first_overflow(write_step(folder, step), **options).to_dict()


def usable(program):
    step = step_of(program)
    assume(step.ranks)
    return step


def who(finding, called=lambda rank: rank):
    """All (rank, op) that show a finding: which of them stands for the rest depends on numbers."""
    first = {"rank": finding["rank"], "op_name": finding["op_name"]}
    return frozenset((called(m["rank"]), m["op_name"]) for m in [first, *finding["members"]])


def told(report, called=lambda rank: rank, op_name=lambda name: name, *, reach=True):
    """What is said of the findings, in no order."""
    return Counter(
        (
            frozenset((rank, op_name(name)) for rank, name in who(f, called)),
            f["kind"],
            f["severity"],
            f["layer"],
            f["depth"],
            *((f["reach_ops"], f["reach_ranks"]) if reach else ()),
        )
        for f in report["findings"]
    )


def apart(report):
    """The findings whose place is told by the dump, and how many of each severity entered unseen.

    Of deliveries in a circle that stand at one place of their files the lowest rank's has entered (rule 7).
    """
    unseen = [f for f in report["findings"] if f["kind"] == "missing_rank" and not f["missing_ranks"]]
    own = [f for f in report["findings"] if f not in unseen]
    return {**report, "findings": own}, Counter(f["severity"] for f in unseen)


def counts_of(report, called=lambda rank: rank):
    return {called(r["rank"]): (r["ops"], r["counts"]) for r in report["ranks"]}


def without_bytes(report):
    """The report without what the place and the spelling of files must change."""
    files = [{**u, "path": "", "line": 0, "column": 0} for u in report["unreadable"]]
    return json.dumps({**report, "total_bytes": 0, "unreadable": files})


@given(programs())
@some(150)
def test_layers_agree_with_the_order_of_each_file(program):
    """A rank's own findings stand in the order of its file, in layers that do not go down."""
    report = report_of(usable(program))
    for rank in {f["rank"] for f in report["findings"]}:
        own = sorted(
            (f for f in report["findings"] if f["rank"] == rank and f["kind"] == "compute"),
            key=lambda f: f["exec_order"],
        )
        layers = [f["layer"] for f in own]
        assert layers == sorted(set(layers))  # each behind the one before
        depths = [f["depth"] for f in own]
        assert depths == sorted(depths)


@given(programs())
@some(80)
def test_happens_before_is_an_order(program):
    """Of the reference's relation, whose layers are those of the core (test_against_reference)."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = reference.analyse(write_step(folder, usable(program)))["happens_before"]
    assert all(a != b for a, b in pairs)
    assert all((a, d) in pairs for a, b in pairs for c, d in pairs if b == c)
    assert all((b, a) not in pairs for a, b in pairs)


@given(programs())
@some(150)
def test_the_first_has_nothing_before_it(program):
    report = report_of(usable(program))
    findings = report["findings"]
    certain = [f for f in findings if not any("probably received" in w for w in f["why_not_certain"])]
    if certain:
        assert findings[0] in certain
        assert certain[0]["layer"] == min(f["layer"] for f in certain)
        assert [f["layer"] for f in certain] == sorted(f["layer"] for f in certain)
    others = [f["concurrent"] for f in findings[1:]]
    assert not findings or findings[0]["concurrent"] == any(others)


@given(programs(), st.randoms(use_true_random=False))
@some(150)
def test_ranks_may_have_other_numbers(program, random):
    called = list(range(program.ranks))
    random.shuffle(called)
    plain, renamed = report_of(usable(program)), report_of(step_of(program, called=called))
    assert renamed["verdict"] == plain["verdict"]
    # Where several members gave something bad, the lowest rank's is followed back.
    (own, entered), (renamed_own, renamed_entered) = apart(plain), apart(renamed)
    assert told(renamed_own, reach=False) == told(own, called=lambda rank: called[rank], reach=False)
    assert renamed_entered == entered
    assert counts_of(renamed) == counts_of(plain, lambda rank: called[rank])


@given(programs())
@some(100)
def test_groups_may_have_other_names(program):
    plain = report_of(usable(program))
    renamed = report_of(step_of(program, group_prefix="another"))
    for report in (plain, renamed):
        for c in report["communications"]:
            del c["group_id"]
        report["communications"].sort(key=lambda c: json.dumps(c, sort_keys=True))
    assert without_bytes(renamed) == without_bytes(plain)


@given(programs(), st.integers(1, 10**6))
@some(100)
def test_call_counters_may_start_anywhere(program, first_call):
    def back(name):
        *head, number, way = name.split(".")
        return ".".join([*head, str(int(number) - first_call), way])

    plain, shifted = report_of(usable(program)), report_of(step_of(program, first_call=first_call))
    assert told(shifted, op_name=back) == told(plain)
    assert counts_of(shifted) == counts_of(plain)


@given(programs())
@some(60)
def test_threads_and_repetition_change_no_byte(program):
    step = usable(program)
    with tempfile.TemporaryDirectory() as folder:
        where = write_step(folder, step)
        texts = {ovf.find_first_overflow(where, threads=n).json() for n in (1, 8, 8, 1)}
    assert len(texts) == 1


@given(programs(min_ranks=2))
@some(60)
def test_an_unrelated_clean_rank_changes_only_counts(program):
    # Not where it makes one rank several, joins the group of all, or hides that ranks communicate.
    assume(len(step_of(program).ranks) > 1 and program.ranks % 2 == 0)
    assume(any(a.what != "compute" for a in program.actions))
    plain, more = report_of(usable(program)), report_of(step_of(program, extra_rank=True))
    assert more["verdict"] == plain["verdict"]
    assert told(more) == told(plain)
    assert [who(f) for f in more["findings"]] == [who(f) for f in plain["findings"]]
    assert more["total_ops"] == plain["total_ops"] + 1


@given(programs())
@some(100)
def test_healed_values_are_never_first(program):
    report = report_of(usable(program))
    healed = {
        (o["rank"], o["op_name"], o["exec_order"]) for n in report["notes"] if n["kind"] == "healed" for o in n["ops"]
    }
    found = {(f["rank"], f["op_name"], f["exec_order"]) for f in report["findings"]}
    assert not healed & found
    if not report["findings"]:
        assert report["verdict"] in ("clean", "no_evidence")


@given(st.data())
@some(60)
def test_spelling_changes_nothing(data):
    """Indentation, spelling of numbers and order of header keys; stack and construct stay."""
    step = data.draw(st.one_of(strategies.single_rank_dumps(), programs().map(step_of)))
    assume(step.ranks)
    one, other = data.draw(ENCODINGS), data.draw(ENCODINGS)
    step.encoding = one
    plain = report_of(step)
    step.encoding = Encoding(other.indent, other.non_finite, other.numbers, one.stack, one.construct, other.header)
    respelled = report_of(step)
    for report in (plain, respelled):
        for f in [*report["findings"], *([report["first"]] if report["first"] else [])]:
            f["scalars"] = sorted(map(str, f["scalars"]))
    assert without_bytes(respelled) == without_bytes(plain)


def reordered(value, key):
    """A value whose dicts have their keys in another order; lists stay."""
    if isinstance(value, dict):
        return {k: reordered(value[k], key) for k in sorted(value, key=key)}
    return [reordered(v, key) for v in value] if isinstance(value, list) else value


@given(programs(), st.sampled_from((lambda k: k[::-1], lambda k: (len(k), k), str.lower)))
@some(60)
def test_the_order_of_keys_in_a_record_changes_nothing(program, key):
    step = usable(program)
    with tempfile.TemporaryDirectory() as folder:
        where = write_step(folder, step)
        plain = ovf.find_first_overflow(where).to_dict()
        for path in where.rglob("dump.json"):
            dump = json.loads(path.read_text())
            records = {}
            for name, record in dump["data"].items():
                # Keyword arguments keep their order: the output is told apart by it.
                kept = {"input_kwargs": record.get("input_kwargs")}
                parts = {k: v if k in kept else reordered(v, key) for k, v in record.items()}
                records[name] = {k: parts[k] for k in sorted(parts, key=key)}
            path.write_text(json.dumps({**dump, "data": records}, indent=1))
        again = ovf.find_first_overflow(where).to_dict()
    for report in (plain, again):
        for f in [*report["findings"], *([report["first"]] if report["first"] else [])]:
            for part in ("inputs", "outputs", "scalars"):
                f[part] = sorted(map(str, f[part]))
    assert without_bytes(again) == without_bytes(plain)
