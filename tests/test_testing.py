import json
import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ovf.testing import (
    Damage,
    Encoder,
    Encoding,
    Fault,
    Layout,
    Op,
    Step,
    TensorStat,
    Training,
    has_non_finite,
    measure,
    scaled,
    simulated_step,
    strategies,
    to_json,
    write_step,
    write_training,
)
from ovf.testing.__main__ import main
from ovf.testing.layout import Axis
from ovf.testing.registration import register_types
from ovf.testing.values import is_non_finite

PLAIN = Encoding()
quick = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# A place for every fault: layout, fault.
TP_PP_DP = Layout(tp=2, pp=2, dp=2)
EXPERTS = Layout(tp=2, pp=2, dp=2, ep=2)
CASES = [
    (TP_PP_DP, Fault("forward", 5, 1, 1)),
    (TP_PP_DP, Fault("masked_row", 2, 1, 0)),
    (TP_PP_DP, Fault("corruption", 1, 0, 0)),
    (TP_PP_DP, Fault("backward", 6, 2, 1)),
    (TP_PP_DP, Fault("tp_all_reduce", 3, 0, 1)),
    (TP_PP_DP, Fault("dp_all_reduce", 5, 0, 1)),
    (TP_PP_DP, Fault("recv", 4, 1)),
    (TP_PP_DP, Fault("weight", 7, 0, 1)),
    (TP_PP_DP, Fault("batch", 2, 1)),
    (TP_PP_DP, Fault("optimizer", 0, 0, 1)),
    (EXPERTS, Fault("expert", 6, 1, 0)),
    (EXPERTS, Fault("weight", 1, 0, 1)),
    (Layout(), Fault("forward", 0, 1, 0)),
    (Layout(pp=3), Fault("forward", 1, 0, 0)),
]
VARIANTS = [
    {"level": "L1", "p2p": "send", "schedule": "gpipe"},
    {"level": "L1", "p2p": "batch", "schedule": "1f1b"},
    {"level": "mix", "p2p": "isend", "schedule": "1f1b", "garbage_buffers": True},
    {"level": "mix", "p2p": "batch", "schedule": "gpipe", "garbage_buffers": True},
]


def small(layout=TP_PP_DP, faults=(), **options):
    sizes = {"hidden": 8 * layout.tp, "sequence": 5, "heads": 2 * layout.tp, "vocabulary": 19}
    options = {"layers": 2 * layout.pp, "micro_batches": 3, "warm_up": True, **options}
    return Training(layout, faults=tuple(faults), **sizes, **options)


def read(folder):
    """Read a step directory with the plainest means: rank -> name -> record."""
    found = {}
    for path in folder.iterdir():
        number = path.name.removeprefix("rank") if path.name.startswith("rank") else "0"
        found[int(number)] = json.loads((path / "dump.json").read_text("utf-8"))["data"]
    return dict(sorted(found.items()))


def same(left, right):
    """Compare plain objects; NaN equals NaN, and 1, 1.0 and True are three things."""
    return repr(left) == repr(right)


# What the dump says about communication, told from the records alone.


def groups_of(record):
    group = record.get("input_kwargs", {}).get("group")
    return (tuple(group["group_ranks"]), group["group_id"]) if group else None


def records_of(record, key):
    return record.get(key) or []


def messages(rank, record, name):
    """Give what a record sends and receives: (source, destination, tensor, sent)."""
    api = name.split(".")[1]
    if api == "batch_isend_irecv":
        for before, after in zip(record["input_args"][0], record["output"][0], strict=True):
            if before["op"] == "isend":
                yield rank, before["peer"], before["tensor"], True
            else:
                yield after["peer"], rank, after["tensor"], False
    elif api in {"send", "isend"}:
        tensor, peer = record["input_args"]
        yield rank, peer["value"], tensor, True
    elif api in {"recv", "irecv"}:
        tensor, peer = record["output"]
        yield peer["value"], rank, tensor, False


def communications(dump):
    """Match communications by order of issue: groups -> [[(rank, index)]], pairs likewise."""
    ranks = tuple(dump)
    collectives, sends, receives = defaultdict(dict), defaultdict(list), defaultdict(list)
    for rank, ops in dump.items():
        for index, (name, record) in enumerate(ops.items()):
            if not name.startswith("Distributed."):
                continue
            if any(part in name for part in ("send", "recv")):
                for src, dst, tensor, sent in messages(rank, record, name):
                    (sends if sent else receives)[src, dst].append((rank, index, tensor))
                continue
            group = groups_of(record) or (ranks, "default")
            assert rank in group[0]
            collectives[group].setdefault(rank, []).append((index, name.split(".")[1]))
    return collectives, sends, receives


def evidence(name, record):
    """Give the values of a record that are evidence: no buffers, no asked-for -inf."""
    api = name.split(".")[1]
    inputs = [record.get(key) for key in ("input", "input_args", "input_kwargs", "parameters")]
    output = record.get("output")
    if ".parameters_grad" in name:
        output = record
    if api == "all_to_all_single":
        inputs = record["input_args"][1:]
    elif api in {"recv", "irecv"}:
        inputs = []
    elif api == "batch_isend_irecv":
        inputs = [item["tensor"] for item in record["input_args"][0] if item["op"] == "isend"]
    elif api == "masked_fill" and name.endswith("forward"):
        output = without_minus_inf(output)
    elif api == "softmax" and name.endswith("forward"):
        inputs = without_minus_inf(record["input_args"])
    return inputs, output


def without_minus_inf(listed):
    return [{**item, "Min": 0.0} if item.get("Min") == -math.inf else item for item in listed]


def bad_evidence(name, record):
    inputs, output = evidence(name, record)
    return has_non_finite(inputs), has_non_finite(output)


def cone(dump, starts):
    """Give, for each rank, the first index that an event may have influenced."""
    reach = dict.fromkeys(dump, math.inf)
    for rank, index in starts:
        reach[rank] = min(reach[rank], index)
    collectives, sends, receives = communications(dump)
    meetings = []
    for members in collectives.values():
        for calls in zip(*members.values(), strict=True):
            at = [(rank, call[0]) for rank, call in zip(members, calls, strict=True)]
            meetings.append((at, at))
    for pair, sent in sends.items():
        for (src, i, _), (dst, j, _) in zip(sent, receives[pair], strict=True):
            meetings.append(([(src, i)], [(dst, j)]))
    changed = True
    while changed:
        changed = False
        for sources, targets in meetings:
            if any(index >= reach[rank] for rank, index in sources):
                for rank, index in targets:
                    changed |= index < reach[rank]
                    reach[rank] = min(reach[rank], index)
    return reach


def origins(step):
    truth = step.truth
    return [truth.first, *truth.also_acceptable, *truth.later] if truth.first else []


def check_nothing_bad_outside_the_cone(step, dump):
    starts = [(at.rank, list(dump[at.rank]).index(at.op)) for at in origins(step)]
    reach = cone(dump, starts)
    for rank, ops in dump.items():
        for index, (name, record) in enumerate(ops.items()):
            if index < reach[rank]:
                assert bad_evidence(name, record) == (False, False), (rank, name)


# Encoding.


@quick
@given(value=strategies.nested_values(), indent=st.sampled_from([1, 2, 4, None]))
def test_text_is_what_json_would_write(value, indent):
    separators = (",", ":") if indent is None else None
    wanted = json.dumps(to_json(value), indent=indent, separators=separators)
    assert Encoder(Encoding(indent=indent)).text(value) == wanted


@pytest.mark.parametrize("spelling", ["token", "lower", "word", "padded", "mixed"])
def test_non_finite_values_are_told_in_every_spelling(spelling):
    encoder = Encoder(Encoding(non_finite=spelling))
    for _ in range(5):
        for value in (math.nan, math.inf, -math.inf):
            back = json.loads(encoder.text(value))
            assert isinstance(back, float) == (spelling == "token") or spelling == "mixed"
            assert is_non_finite(back)
    assert json.loads(encoder.text(1.5)) == 1.5


def test_spellings_keep_the_three_kinds_apart():
    text = Encoder(Encoding(non_finite="mixed")).text([math.nan, math.inf, -math.inf] * 4)
    kinds = [str(item).strip().lower().replace("infinity", "inf") for item in json.loads(text)]
    assert kinds == ["nan", "inf", "-inf"] * 4


def test_numbers_as_old_writers_spelled_them():
    stat = TensorStat("torch.int64", (2,), 7, 0)
    assert '"Max": 7.0' in Encoder(Encoding(numbers="floats")).text(stat)
    assert '"shape": [\n  2\n ]' in Encoder(Encoding(numbers="floats")).text(stat)
    stat = TensorStat("torch.float32", (2,), 1.0, -0.5)
    whole = Encoder(Encoding(numbers="whole")).text(stat)
    assert '"Max": 1,' in whole
    assert '"Min": -0.5' in whole


@quick
@given(step=strategies.single_rank_dumps(encoded=st.just(PLAIN)))
def test_one_rank_reads_back_as_written(step, tmp_path_factory):
    folder = write_step(tmp_path_factory.mktemp("dump"), step)
    wanted = {op.name: to_json(op.body) for op in step.ranks[0]}
    assert same(read(folder)[0], wanted)


@quick
@given(step=strategies.single_rank_dumps())
def test_any_spelling_is_json_with_the_same_names(step, tmp_path_factory):
    folder = write_step(tmp_path_factory.mktemp("dump"), step)
    assert list(read(folder)[0]) == [op.name for op in step.ranks[0]]
    header = json.loads((folder / "rank0" / "dump.json").read_text("utf-8"))
    assert tuple(header) == step.encoding.header


# Simulated steps.


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(map(str, variant.values())))
@pytest.mark.parametrize(("layout", "fault"), CASES, ids=lambda case: str(case)[:60])
def test_a_fault_shows_first_where_truth_says(layout, fault, variant, tmp_path):
    step = simulated_step(small(layout, [fault], **variant))
    dump = read(write_step(tmp_path, step))
    first = step.truth.first
    assert first.kind == fault.kind
    record = dump[first.rank][first.op]
    inputs_bad, output_bad = bad_evidence(first.op, record)
    if first.op.startswith("Functional.softmax"):
        assert record["input_args"][0]["Min"] == -math.inf
    assert inputs_bad == (fault.kind in {"parameter", "input", "corruption"})
    assert output_bad
    assert has_non_finite(record["output"])
    check_nothing_bad_outside_the_cone(step, dump)


@pytest.mark.parametrize(("layout", "fault"), CASES, ids=lambda case: str(case)[:60])
def test_a_fault_reaches_the_update_of_every_rank(layout, fault):
    # An infinite norm of the gradients scales what is finite to zero: it spreads no further.
    # A division in the update is the last thing a rank does.
    step = simulated_step(small(layout, [fault]))
    stays = {"optimizer": {fault.rank}, "dp_all_reduce": set(layout.group("dp", fault.rank).ranks)}
    reached = stays.get(fault.place, set(step.ranks))
    for rank, ops in step.ranks.items():
        updates = [op.body["output"] for op in ops if op.name.startswith("Tensor.add_.")]
        assert has_non_finite(updates) == (rank in reached), rank


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(map(str, variant.values())))
def test_a_clean_step_has_only_masks_and_garbage(variant, tmp_path):
    step = simulated_step(small(**variant))
    assert step.truth.first is None
    dump = read(write_step(tmp_path, step))
    names = [name for ops in dump.values() for name, op in ops.items() if any(bad_evidence(name, op))]
    assert names == []
    masked = [op for ops in dump.values() for name, op in ops.items() if ".masked_fill." in name]
    assert any(op["output"][0]["Min"] == -math.inf for op in masked if "input_args" in op)


@quick
@given(step=strategies.steps(damaged=False, encoded=st.just(PLAIN)))
def test_drawn_steps_are_consistent(step, tmp_path_factory):
    dump = read(write_step(tmp_path_factory.mktemp("dump"), step))
    assert {rank: list(ops) for rank, ops in dump.items()} == {
        rank: [op.name for op in ops] for rank, ops in step.ranks.items()
    }
    check_nothing_bad_outside_the_cone(step, dump)
    collectives, sends, receives = communications(dump)
    for (ranks, _), members in collectives.items():
        assert tuple(sorted(members)) == ranks
        kinds = {tuple(api for _, api in calls) for calls in members.values()}
        assert len(kinds) == 1
    assert {pair: len(sent) for pair, sent in sends.items()} == {pair: len(got) for pair, got in receives.items()}


@pytest.mark.parametrize("p2p", ["send", "isend", "batch"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_what_is_received_is_what_was_sent(p2p, schedule, tmp_path):
    step = simulated_step(small(Layout(pp=4, tp=2), p2p=p2p, schedule=schedule, micro_batches=5))
    _, sends, receives = communications(read(write_step(tmp_path, step)))
    assert len(sends) == 2 * 2 * 3
    for pair, sent in sends.items():
        assert [item[2] for item in sent] == [item[2] for item in receives[pair]]
        assert len(sent) == 5


def test_only_the_corrupted_message_differs(tmp_path):
    step = simulated_step(small(Layout(pp=2), [Fault("recv", 1, 1)]))
    _, sends, receives = communications(read(write_step(tmp_path, step)))
    pairs = zip(sends[0, 1], receives[0, 1], strict=True)
    assert [has_non_finite([a[2], b[2]]) for a, b in pairs] == [False, True, False]


def test_members_name_the_same_communication(tmp_path):
    step = simulated_step(small(faults=[Fault("dp_all_reduce", 5, 0, 1)]))
    dump = read(write_step(tmp_path, step))
    truth = step.truth
    members = [truth.first, *truth.also_acceptable]
    assert truth.first.rank == 5
    groups = {groups_of(dump[at.rank][at.op]) for at in members}
    assert len(groups) == 1
    assert sorted(at.rank for at in members) == sorted(groups.pop()[0])


def test_call_numbers_count_calls_of_an_api_on_a_rank():
    step = simulated_step(small())
    numbers = {}
    for rank, ops in step.ranks.items():
        calls = defaultdict(list)
        for op in ops:
            prefix, api, number, direction = op.name.split(".")
            if direction == "forward":
                calls[prefix, api].append(int(number))
        assert all(found == list(range(len(found))) for found in calls.values())
        numbers[rank] = len(calls["Distributed", "all_reduce"])
    # The warm-up shifts the numbers of every other tensor-parallel group.
    assert numbers[0] == numbers[2] + 1


def test_backward_answers_forward():
    step = simulated_step(small(level="mix"))
    for ops in step.ranks.values():
        names = [op.name for op in ops]
        for position, name in enumerate(names):
            head, _, tail = name.rpartition(".")
            if tail == "backward":
                assert names.index(f"{head}.forward") < position
            elif head.endswith(".backward"):
                assert names.index(name.replace(".backward.", ".forward.")) < position


def test_modules_stand_at_their_exit_and_name_their_parents(tmp_path):
    step = simulated_step(small(level="mix"))
    folder = write_step(tmp_path, step)
    construct = json.loads((folder / "rank3" / "construct.json").read_text("utf-8"))
    names = [op.name for op in step.ranks[3] if op.name in construct]
    for position, name in enumerate(names):
        parent = construct[name]
        if parent is not None:
            assert names.index(parent) > position
    assert construct["Functional.gelu.0.forward"] == "Module.layers.0.mlp.MLP.forward.0"


def test_parameter_gradients_accumulate_over_micro_batches():
    training = small(Layout(), [Fault("backward", 0, 1, 0)], level="mix")
    grads = [
        op
        for op in simulated_step(training).ranks[0]
        if op.name.startswith("Module.layers.0.mlp.fc1.Linear.parameters_grad")
    ]
    assert [has_non_finite(op.body) for op in grads] == [False, True, True]
    tails = [op.name.rpartition("parameters_grad")[2] for op in grads]
    assert tails == [".0", ".1", ".2"]


def test_parameter_gradients_without_a_number_stand_once():
    training = small(Layout(), level="mix", numbered_parameters_grad=False)
    names = Counter(op.name for op in simulated_step(training).ranks[0])
    assert names["Module.layers.0.mlp.fc1.Linear.parameters_grad"] == 1
    assert set(names.values()) == {1}


def test_faults_that_cannot_meet_are_equally_first():
    layout = Layout(dp=2)
    step = simulated_step(small(layout, [Fault("forward", 1), Fault("backward", 0, 1)]))
    assert {at.rank for at in (step.truth.first, *step.truth.also_acceptable)} == {0, 1}
    assert step.truth.later == ()


def test_a_fault_that_another_reaches_comes_later():
    layout = Layout(pp=2)
    planted = [Fault("weight", 1, 0, 0), Fault("batch", 0, 0)]
    step = simulated_step(small(layout, planted))
    assert step.truth.first.rank == 0
    assert [at.rank for at in step.truth.later] == [1]


def test_a_fault_under_bad_values_shows_nothing():
    planted = [Fault("batch", 0, 0), Fault("forward", 0, 0, 1)]
    step = simulated_step(small(Layout(), planted))
    assert step.truth.first.op.startswith("Functional.linear")
    assert step.truth.later == ()


def test_the_same_training_gives_the_same_bytes(tmp_path):
    training = small(faults=[Fault("forward", 5)], level="mix", garbage_buffers=True)
    write_training(tmp_path / "a", training)
    write_training(tmp_path / "b", training, processes=2)
    write_step(tmp_path / "c", simulated_step(training))
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.json"))
    assert len(files) == 3 * 8
    for file in files:
        wanted = (tmp_path / "a" / file).read_bytes()
        assert (tmp_path / "b" / file).read_bytes() == wanted
        assert (tmp_path / "c" / file).read_bytes() == wanted
    write_training(tmp_path / "d", replace(training, seed=1))
    assert (tmp_path / "d" / files[1]).read_bytes() != (tmp_path / "a" / files[1]).read_bytes()


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        (Layout(), Fault("tp_all_reduce")),
        (Layout(), Fault("dp_all_reduce")),
        (Layout(), Fault("expert")),
        (Layout(pp=2), Fault("recv", 0)),
        (Layout(pp=2), Fault("batch", 1)),
        (Layout(), Fault("forward", 1)),
        (Layout(), Fault("forward", 0, 3)),
        (Layout(), Fault("forward", 0, 0, 2)),
    ],
)
def test_a_fault_without_a_place_is_refused(layout, fault):
    with pytest.raises(ValueError, match=r"needs|not among|none is|there are"):
        small(layout, [fault])


# Layouts.


@quick
@given(layout=strategies.layouts(max_ranks=24))
def test_groups_of_an_axis_divide_the_ranks(layout):
    for axis in Axis.__args__:
        groups = {layout.group(axis, rank) for rank in range(layout.ranks)}
        assert Counter(rank for group in groups for rank in group.ranks) == Counter(range(layout.ranks))
    for rank in range(layout.ranks):
        assert layout.rank(layout.place(rank)) == rank
        assert len(layout.group("ep", rank).ranks) == layout.ep


# Files.


@pytest.mark.parametrize("stack", ["new", "old", "none"])
@pytest.mark.parametrize("construct", [True, False])
def test_stacks_name_every_forward_op_once(stack, construct, tmp_path):
    step = simulated_step(small(level="mix"))
    folder = write_step(tmp_path, step, Encoding(stack=stack, construct=construct)) / "rank0"
    assert (folder / "construct.json").exists() == construct
    assert (folder / "stack.json").exists() == (stack != "none")
    if stack == "none":
        return
    found = json.loads((folder / "stack.json").read_text("utf-8"))
    names = [name for group in found.values() for name in group[0]] if stack == "new" else [*found]
    forward = [op.name for op in step.ranks[0] if ".forward" in op.name]
    assert sorted(names) == sorted(forward)
    lines = found["0"][1] if stack == "new" else found[forward[0]]
    assert all(line.startswith("File ") and ", line " in line for line in lines)


def test_damage_leaves_out_cuts_and_empties(tmp_path):
    step = simulated_step(small(Layout(dp=4)))
    whole = write_step(tmp_path / "whole", step)
    damage = Damage(frozenset({1}), {2: 5000, 3: 0})
    folder = write_step(tmp_path / "damaged", step, damage=damage)
    assert sorted(path.name for path in folder.iterdir()) == ["rank0", "rank2", "rank3"]
    assert (folder / "rank3" / "dump.json").read_bytes() == b""
    kept = (folder / "rank2" / "dump.json").read_bytes()
    assert len(kept) == 5000
    assert (whole / "rank2" / "dump.json").read_bytes().startswith(kept)


def test_a_lone_process_has_a_folder_of_its_own(tmp_path):
    step = simulated_step(small(Layout()))
    folder = write_step(tmp_path, step, damage=Damage(process=4711))
    assert [path.name for path in folder.iterdir()] == ["proc4711"]


def test_header_keys_come_in_the_order_asked_for(tmp_path):
    order = ("framework", "data", "task")
    step = Step({0: [Op("Torch.exp.0.forward", {"output": []})]}, headers={"task": "tensor"})
    path = write_step(tmp_path, step, Encoding(header=order)) / "rank0" / "dump.json"
    found = json.loads(path.read_text("utf-8"))
    assert tuple(found) == order
    assert found["task"] == "tensor"


def test_an_empty_rank_is_valid(tmp_path):
    folder = write_step(tmp_path, Step({0: []}))
    assert read(folder) == {0: {}}


# Sizes and the command.


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_scaling_hits_the_size(level, tmp_path):
    training = scaled(Training(Layout(pp=2, tp=2), level=level), rank_mb=1.5)
    write_training(tmp_path, training)
    sizes = [path.stat().st_size for path in tmp_path.rglob("dump.json")]
    assert len(sizes) == 4
    assert sum(sizes) / 4 == pytest.approx(1.5e6, rel=0.1)
    assert measure(training)[0] == pytest.approx(sum(sizes) / 4, rel=0.02)


def test_scaling_hits_the_number_of_ops():
    training = scaled(Training(Layout(dp=2)), ops_per_rank=3000)
    assert measure(training)[1] == pytest.approx(3000, rel=0.1)


def test_the_command_writes_a_step_and_its_answer(tmp_path):
    options = "--tp 2 --pp 2 --dp 2 --fault forward:5:50%:50% --level mix --step 3"
    assert main([str(tmp_path), *options.split()]) == 0
    truth = json.loads((tmp_path / "truth.json").read_text("utf-8"))
    assert {key: truth[key] for key in ("answer", "rank", "kind", "step", "visible")} == {
        "answer": "found",
        "rank": 5,
        "kind": "compute",
        "step": 3,
        "visible": True,
    }
    dump = read(tmp_path / "step3")
    assert len(dump) == 8
    assert bad_evidence(truth["op"], dump[5][truth["op"]]) == (False, True)


@pytest.mark.parametrize("option", ["--missing=1", "--cut=1:5000"])
def test_the_command_says_when_the_answer_is_not_dumped(tmp_path, option):
    main([str(tmp_path), "--dp", "2", "--fault", "forward:1:1:1", option])
    truth = json.loads((tmp_path / "truth.json").read_text("utf-8"))
    assert (truth["rank"], truth["visible"]) == (1, False)


def test_two_steps_are_never_mixed(tmp_path, capsys):
    main([str(tmp_path), "--clean"])
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--clean", "--dp", "2"])
    assert "holds a step already" in capsys.readouterr().err
    assert sorted(p.name for p in (tmp_path / "step0").iterdir()) == ["rank0"]


def test_the_command_writes_clean_steps(tmp_path):
    main([str(tmp_path), "--clean"])
    truth = json.loads((tmp_path / "truth.json").read_text("utf-8"))
    assert (truth["answer"], truth["op"], truth["also_acceptable"]) == ("none", None, [])


@pytest.mark.parametrize(
    "options",
    [
        "--fault nowhere:0",
        "--fault forward",
        "--fault forward:0:1:1:1",
        "--fault forward:9",
        "--fault recv:0",
        "--dp 3 --ep 2",
        "--pp 4 --layers 2",
        "--dp 2 --proc 7",
    ],
)
def test_options_that_fit_no_step_exit_2(options, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "out"), *options.split()])
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_faults_are_read_as_they_are_printed():
    for _, fault in CASES:
        assert Fault.parse(str(fault)) == fault
    assert Fault.parse("weight:3:-1") == Fault("weight", 3, -1, 0)


def test_the_command_takes_more_faults(tmp_path):
    main([str(tmp_path), *["--pp", "2", "--fault", "weight:1", "--fault", "batch:0"]])
    truth = json.loads((tmp_path / "truth.json").read_text("utf-8"))
    assert truth["rank"] == 0
    assert [at["rank"] for at in truth["later"]] == [1]


def test_help_names_every_fault(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for _, fault in CASES:
        assert fault.place in text


# Strategies.


@quick
@given(stat=strategies.tensor_stats())
def test_drawn_statistics_are_ordered(stat):
    assume(stat.max is not None)
    assert not stat.max < stat.min


@quick
@given(op=strategies.ops())
def test_drawn_ops_have_the_keys_of_their_direction(op):
    allowed = {"input_args", "input_kwargs", "output", "parameters", "is_recompute"}
    if ".parameters_grad" in op.name:
        allowed = {"weight", "bias"}
    elif ".backward" in op.name:
        allowed = {"input", "output"}
    assert set(op.body) <= allowed


@quick
@given(step=strategies.steps(ranks=4, min_faults=1, max_faults=1))
def test_drawn_sizes_and_faults_are_those_asked_for(step, tmp_path_factory):
    assert sorted(step.ranks) == [0, 1, 2, 3]
    assert step.truth.first is not None
    folder = write_step(tmp_path_factory.mktemp("dump"), step)
    assert len([*folder.iterdir()]) == 4 - len(step.damage.missing)


def test_a_layout_that_cannot_be_is_refused():
    @given(strategies.layouts(ranks=7, tp=2))
    def draw(layout):
        raise AssertionError(layout)

    with pytest.raises(ValueError, match="no layout"):
        draw()


def test_types_are_registered():
    register_types()
    drawn = []

    @settings(max_examples=5, database=None)
    @given(st.from_type(TensorStat))
    def draw(stat):
        drawn.append(type(stat))

    draw()
    assert set(drawn) == {TensorStat}


def run_python(code):
    package = Path(sys.modules["ovf"].__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_hypothesis_is_imported_with_the_strategies_only():
    code = (
        "import sys, ovf.testing as t\n"
        "assert 'hypothesis' not in sys.modules\n"
        "t.strategies.steps()\n"
        "assert 'hypothesis' in sys.modules\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_without_hypothesis_the_error_names_the_extra():
    code = (
        "import sys\nsys.modules['hypothesis'] = None\nimport ovf.testing\n"
        "from ovf.testing import *\nprint(Layout(tp=2).ranks)\novf.testing.strategies\n"
    )
    done = run_python(code)
    assert done.stdout == "2\n"
    assert "ImportError" in done.stderr
    assert "ovf-npu[testing]" in done.stderr
