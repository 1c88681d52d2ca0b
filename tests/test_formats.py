"""The small inputs of the format description, each with its right answer."""

from __future__ import annotations

import json

import pytest

import ovf
from small import (
    INF,
    NAN,
    collective,
    dump,
    grad,
    group,
    loss_chain,
    op,
    recv,
    scalar,
    send,
    t,
    write_rank,
    write_step,
)


def answer(path, **options):
    report = ovf.find_first_overflow(path, **options)
    return (report.first.rank, report.first.op_name) if report.first else None


def rank_answer(tmp_path, data, **more):
    return ovf.find_first_overflow(write_rank(tmp_path / "step0" / "rank0", data, **more))


# --- A: exemption must be narrow --------------------------------------------------------------------------------------

MASK = op([t(2.1, -1.9), t(True, False, "torch.bool"), scalar(-INF)], [t(2.1, -INF)])


def test_softmax_over_a_masked_row_is_the_origin_not_the_mask(tmp_path):
    data = {
        "Tensor.masked_fill.4.forward": MASK,
        "Functional.softmax.2.forward": op([t(2.1, -INF)], [t(NAN, NAN)]),
        **loss_chain(),
    }
    assert rank_answer(tmp_path, data).first.op_name == "Functional.softmax.2.forward"


def test_a_healed_mask_does_not_hide_a_later_exp(tmp_path):
    data = {
        "Tensor.masked_fill.4.forward": MASK,
        "Functional.softmax.2.forward": op([t(2.1, -INF)], [t(1.0, 0.0)]),
        "Torch.exp.9.forward": op([t(95.0, 0.1)], [t(INF, 1.1)]),
        **loss_chain(t(INF, 1.1)),
    }
    report = rank_answer(tmp_path, data)
    assert report.first.op_name == "Torch.exp.9.forward"
    assert len(report.findings) == 1


def test_masked_fill_with_neg_inf_is_not_excused_for_pos_inf(tmp_path):
    bad = op([t(2.1, -1.9), t(True, False, "torch.bool"), scalar(-INF)], [t(INF, -1.9)])
    data = {"Tensor.masked_fill.4.forward": bad, **loss_chain(t(INF, -1.9))}
    assert rank_answer(tmp_path, data).first.op_name == "Tensor.masked_fill.4.forward"


@pytest.mark.parametrize("low", [-INF, "-inf", "-Infinity", " -INF\t"])
def test_masks_alone_are_clean_in_every_spelling(tmp_path, low):
    data = {
        "Tensor.masked_fill.4.forward": op([t(2.1, -1.9), scalar(-INF)], [t(2.1, low)]),
        "Functional.softmax.2.forward": op([t(2.1, low)], [t(1.0, 0.0)]),
    }
    assert rank_answer(tmp_path, data).verdict == "clean"


# --- B: cast overflow -------------------------------------------------------------------------------------------------


def test_a_cast_that_overflows_is_named_with_the_limit(tmp_path):
    data = {
        "Tensor.to.7.forward": op([t(81920.0, -3.0, "torch.float32")], [t(INF, -3.0, "torch.float16")]),
        **loss_chain(t(INF, -3.0, "torch.float16")),
    }
    first = rank_answer(tmp_path, data).first
    assert first.op_name == "Tensor.to.7.forward"
    assert "65504" in first.hint.likely


# --- C: garbage receive buffers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [t(NAN, NAN), None])
def test_what_a_receive_buffer_held_is_no_evidence(tmp_path, buffer):
    record = op(
        [buffer, t(0.7, -0.4)],
        [t(0.7, -0.5), t(0.7, -0.4), group(0, 1)],
        kwargs={"group": group(0, 1)},
    )
    data = {"Distributed.all_gather_into_tensor.3.forward": record}
    assert ovf.find_first_overflow(write_step(tmp_path / "step0", {0: data, 1: data})).verdict == "clean"


def test_buffers_given_by_keyword_are_buffers_too(tmp_path):
    record = op(
        [],
        [t(0.7, -0.5), t(0.7, -0.4), group(0, 1)],
        kwargs={"output_tensor": t(NAN, NAN), "input_tensor": t(0.7, -0.4), "group": group(0, 1)},
    )
    data = {"Distributed.all_gather_into_tensor.3.forward": record}
    assert ovf.find_first_overflow(write_step(tmp_path / "step0", {0: data, 1: data})).verdict == "clean"


# --- D: two groups, different call numbers ----------------------------------------------------------------------------


def two_groups(tmp_path, *, rank0_fault):
    """TP groups [0,1],[2,3], DP groups [0,2],[1,3]; ranks 0 and 1 warm up, so their numbers are one ahead."""
    fine, bad = t(0.5, -0.5), t(NAN, NAN)
    ranks = {}
    for rank in range(4):
        tp, tp_name = ((0, 1), "tp0") if rank < 2 else ((2, 3), "tp1")
        dp, dp_name = ((0, 2), "dp0") if rank % 2 == 0 else ((1, 3), "dp1")
        shift = 1 if rank < 2 else 0
        data = {}
        if shift:
            data.update([collective("all_reduce", fine, fine, ranks=tp, name=tp_name, number=0)])
        after_first = bad if rank >= 2 else fine
        data.update([collective("all_reduce", fine, fine, ranks=tp, name=tp_name, number=shift)])
        if rank == 2:
            data["Torch.div.11.forward"] = op([t(1.0, 0.0)], [bad])
        given = bad if rank == 2 else fine
        data.update([collective("all_reduce", given, after_first, ranks=tp, name=tp_name, number=1 + shift)])
        if rank == 0 and rank0_fault:
            data["Torch.div.30.forward"] = op([t(1.0, 0.0)], [bad])
        given = bad if (rank == 0 and rank0_fault) or rank >= 2 else fine
        after = bad if rank0_fault or rank >= 2 else fine
        data.update(
            [
                collective(
                    "all_reduce",
                    given if rank != 1 else fine,
                    after,
                    ranks=tp,
                    name=tp_name,
                    number=2 + shift,
                )
            ]
        )
        data.update([collective("all_reduce", after, bad, ranks=dp, name=dp_name, number=3 + shift)])
        ranks[rank] = data
    return write_step(tmp_path / "step0", ranks)


def test_groups_are_matched_by_order_not_by_the_counter(tmp_path):
    report = ovf.find_first_overflow(two_groups(tmp_path, rank0_fault=False))
    assert (report.first.rank, report.first.op_name) == (2, "Torch.div.11.forward")
    assert len(report.findings) == 1
    assert not report.first.concurrent
    assert report.spread.ranks == (0, 1, 2, 3)


def test_an_unordered_second_fault_is_listed_as_concurrent(tmp_path):
    report = ovf.find_first_overflow(two_groups(tmp_path, rank0_fault=True))
    assert (report.first.rank, report.first.op_name) == (2, "Torch.div.11.forward")
    other = report.findings[1]
    assert (other.rank, other.op_name) == (0, "Torch.div.30.forward")
    assert other.concurrent
    assert report.first.concurrent


# --- E: batched P2P ---------------------------------------------------------------------------------------------------


def p2p(kind, peer, value):
    return {
        "class_type": "torch.distributed.P2POp",
        "tensor": value,
        "op": kind,
        "peer": peer,
        "tag": 0,
        "group_id": "0c4f11aa",
    }


@pytest.mark.parametrize("keyword", [False, True])
def test_a_batched_pair_carries_it_from_the_computing_rank(tmp_path, keyword):
    def batch(before, after):
        if keyword:
            return op([], [[after]], kwargs={"p2p_op_list": [before]})
        return op([[before]], [[after]])

    bad, fine = t(NAN, NAN), t(0.5, -0.5)
    name = "Distributed.batch_isend_irecv.0.forward"
    ranks = {
        1: {
            "Torch.log.0.forward": op([t(1.0, -1.0)], [bad]),
            name: batch(p2p("isend", 2, bad), p2p("isend", 2, bad)),
        },
        2: {
            name: batch(p2p("irecv", 1, t(0.0, 0.0)), p2p("irecv", 1, bad)),
            "Functional.relu.0.forward": op([bad], [bad]),
            **loss_chain(),
        },
    }
    report = ovf.find_first_overflow(write_step(tmp_path / "step0", ranks))
    assert (report.first.rank, report.first.op_name) == (1, "Torch.log.0.forward")
    assert len(report.findings) == 1
    clean = {
        1: {name: batch(p2p("isend", 2, fine), p2p("isend", 2, fine))},
        2: {name: batch(p2p("irecv", 1, bad), p2p("irecv", 1, bad))},
    }
    assert ovf.find_first_overflow(write_step(tmp_path / "step1", clean)).verdict == "clean"


# --- F: crash-truncated ranks -----------------------------------------------------------------------------------------


def test_cut_and_empty_ranks_are_named_and_the_rest_is_analysed(tmp_path):
    step = tmp_path / "step0"
    bad = t(NAN, NAN)
    faulty = {"Torch.log.0.forward": op([t(1.0, -1.0)], [bad]), **loss_chain()}
    fine = {f"Torch.add.{i}.forward": op([t(0.25, 0.125)], [t(0.5, 0.25)]) for i in range(60)}
    write_step(step, {0: faulty, 3: fine})
    text = (step / "rank3" / "dump.json").read_text()
    at = text.index('"Max"', text.index("Torch.add.40.forward"))
    (step / "rank3" / "dump.json").write_text(text[: at + 10])  # in the middle of a number
    (step / "rank1").mkdir()
    (step / "rank1" / "dump.json").write_text("")
    write_rank(step / "rank2", {})
    report = ovf.find_first_overflow(step)
    assert (report.first.rank, report.first.op_name) == (0, "Torch.log.0.forward")
    found = {u.rank: u for u in report.unreadable}
    assert sorted(found) == [1, 2, 3]
    assert found[3].ops_used == 40
    assert "40 complete ops" in found[3].message
    assert found[3].line > 1
    assert report.incomplete
    assert report.exit_code == 2
    assert ovf.find_first_overflow(step, allow_incomplete_ranks=True).exit_code == 1


# --- G: nan_check -----------------------------------------------------------------------------------------------------


def test_the_first_set_register_counts(tmp_path):
    bare = {
        "type": "torch.Tensor",
        "dtype": "torch.float16",
        "shape": [8, 8],
        "requires_grad": False,
    }
    data = {
        "Torch.add.0.forward": {**op([bare], [bare]), "is_nan": 0},
        "Torch.add.1.forward": {**op([bare], [bare]), "is_nan": None},
        "Torch.add.2.forward": {**op([bare], [bare]), "is_nan_index": 17},
        "Torch.matmul.5.forward": {**op([bare], [bare]), "is_nan": 1},
        "Torch.matmul.6.forward": {**op([bare], [bare]), "is_nan": 1},
    }
    report = rank_answer(tmp_path, data, task="nan_check")
    assert report.first.op_name == "Torch.matmul.5.forward"
    assert report.first.certainty == "likely"
    assert len(report.findings) == 1
    del data["Torch.matmul.5.forward"], data["Torch.matmul.6.forward"]
    clean = ovf.find_first_overflow(write_rank(tmp_path / "step1" / "rank0", data, task="nan_check"))
    assert clean.verdict == "clean"


def test_a_register_beside_values_is_only_a_hint(tmp_path):
    data = {"Torch.matmul.5.forward": {**op([t(1.0, 0.0)], [t(1.0, 0.0)]), "is_nan": 1}}
    assert rank_answer(tmp_path, data, task="nan_check").verdict == "clean"


# --- H: weights bad on entry ------------------------------------------------------------------------------------------


def test_a_weight_that_was_bad_before_is_a_parameter_finding(tmp_path):
    data = {
        "Module.0.module.embedding.Emb.forward.0": {
            **op([t(4, 0, "torch.int64")], [t(NAN, NAN)]),
            "parameters": {"weight": t(NAN, -0.2)},
        },
        **loss_chain(),
    }
    first = rank_answer(tmp_path, data, level="mix").first
    assert (first.kind, first.slot) == ("parameter", "parameters.weight")
    assert "before any op of this dump" in first.reason


@pytest.mark.parametrize("name", ["Module.fc.Linear.parameters_grad.0", "Module.fc.Linear.parameters_grad"])
def test_a_bad_weight_gradient_beside_a_clean_backward_is_reported(tmp_path, name):
    fine = t(0.5, -0.5)
    data = {
        "Module.fc.Linear.forward.0": op([fine], [fine]),
        "Module.fc.Linear.backward.0": grad([fine], [fine]),
        name: {"weight": [t(NAN, NAN)], "bias": [None]},
    }
    first = rank_answer(tmp_path, data, level="mix").first
    assert (first.op_name, first.kind) == (name, "parameter")


# --- I: construct and stack variants ----------------------------------------------------------------------------------

CONSTRUCT = {
    "megatron_micro_step_number": 3,
    "Module.0.a.L.forward.0": [None, 0],
    "Torch.exp.0.forward": ["Module.0.a.L.forward.0", 0],
    "optimizer": [None, 2],
    "Tensor.mul_.9.forward": ["optimizer", 2],
}
LINES = ["File model.py, line 41, in act, \n y = torch.exp(x)"]
NEW_STACK = {
    "0": [["Torch.exp.0.forward", "Torch.exp.1.forward"], LINES],
    "1": [["Tensor.mul_.9.forward"], []],
}
OLD_STACK = {"Torch.exp.0.forward": LINES, "Tensor.mul_.9.forward": []}


@pytest.mark.parametrize("stack", [NEW_STACK, OLD_STACK, None, {"0": "garbled"}])
@pytest.mark.parametrize("construct", [CONSTRUCT, {"Torch.exp.0.forward": "Module.0.a.L.forward.0"}, {}, None])
def test_every_layout_of_construct_and_stack(tmp_path, construct, stack):
    data = {"Torch.exp.0.forward": op([t(95.0, 0.1)], [t(INF, 1.1)]), **loss_chain(t(INF, 1.1))}
    first = rank_answer(tmp_path, data, construct=construct, stack=stack).first
    chain = ["Torch.exp.0.forward"] + (["Module.0.a.L.forward.0"] if construct else [])
    assert list(first.construct_chain) == chain
    assert first.module == ("0.a" if construct else None)
    if stack in (NEW_STACK, OLD_STACK):
        assert (first.stack[0].file, first.stack[0].line, first.stack[0].code) == (
            "model.py",
            41,
            "y = torch.exp(x)",
        )
    else:
        assert first.stack == ()


def test_a_circle_of_parents_ends(tmp_path):
    data = {"a": op([t(95.0, 0.1)], [t(INF, 1.1)]), **loss_chain(t(INF, 1.1))}
    first = rank_answer(tmp_path, data, construct={"a": "b", "b": "a"}).first
    assert first.construct_chain == ("a", "b")


# --- J: the collective itself, and absorption -------------------------------------------------------------------------


def test_a_collective_that_turns_finite_into_nan_is_the_origin(tmp_path):
    data = dict([collective("all_reduce", t(0.5, 0.1), t(NAN, NAN), ranks=(0, 1))])
    report = ovf.find_first_overflow(write_step(tmp_path / "step0", {0: data, 1: data}))
    assert (report.first.rank, report.first.kind) == (0, "communication")
    assert [m.rank for m in report.first.members] == [1]


def test_an_absorbed_contribution_is_still_the_source(tmp_path):
    bad, fine = t(NAN, NAN), t(0.5, 0.1)
    ranks = {
        0: dict([collective("all_reduce", fine, fine, ranks=(0, 1))]),
        1: {
            "Torch.log.0.forward": op([t(1.0, -1.0)], [bad]),
            **dict([collective("all_reduce", bad, fine, ranks=(0, 1))]),
        },
    }
    report = ovf.find_first_overflow(write_step(tmp_path / "step0", ranks))
    assert (report.first.rank, report.first.op_name) == (1, "Torch.log.0.forward")
    assert report.communications[0].source_ranks == (1,)
    assert report.communications[0].verdict == "absorbed"


# --- K: recompute -----------------------------------------------------------------------------------------------------


def test_an_origin_that_only_recomputation_shows_says_so(tmp_path):
    fine, bad = t(0.5, -0.5), t(NAN, NAN)
    data = {
        "Module.0.l1.Block.forward.0": op([fine], [fine]),
        "Functional.mse_loss.0.forward": op([fine], [t(0.1, 0.1, shape=())]),
        "Functional.mse_loss.0.backward": grad([t(1.0, 1.0, shape=())], [fine]),
        "Module.0.l1.Block.forward.1": {**op([fine], [bad]), "is_recompute": True},
        "Module.0.l1.Block.backward.0": grad([fine], [bad]),
    }
    first = rank_answer(tmp_path, data, level="mix").first
    assert first.op_name == "Module.0.l1.Block.forward.1"
    assert first.only_in_recompute


# --- L: layouts -------------------------------------------------------------------------------------------------------

BAD = {"Torch.log.0.forward": op([t(1.0, -1.0)], [t(NAN, NAN)]), **loss_chain()}
FINE = {"Torch.add.0.forward": op([t(1.0, -1.0)], [t(1.0, -1.0)])}


def test_steps_in_order_and_process_folders_passed_over(tmp_path):
    write_step(tmp_path / "step5", {0: FINE, 1: FINE})
    write_rank(tmp_path / "step5" / "proc4711", BAD)
    write_step(tmp_path / "step6", {0: BAD})
    report = ovf.find_first_overflow(tmp_path)
    assert report.step == 6
    assert report.steps == (("step5", "clean"), ("step6", "overflow"))
    five = ovf.find_first_overflow(tmp_path, step=5)
    assert five.verdict == "clean"
    assert any("proc4711" in n.text for n in five.notes)


@pytest.mark.parametrize(
    ("folder", "label"),
    [
        ("actor_train/step0/rank3", "rank3"),
        ("pynative/step0/rank0", "rank0"),
        ("step0/pid9527", "pid9527"),
        ("step0/proc12", "proc12"),
        ("step0/rank", "rank"),
    ],
)
def test_other_layouts(tmp_path, folder, label):
    write_rank(tmp_path / folder, BAD)
    report = ovf.find_first_overflow(tmp_path)
    assert report.first.op_name == "Torch.log.0.forward"
    assert report.ranks[0].label == label
    assert report.step == 0


def test_two_phases_are_both_looked_at(tmp_path):
    write_rank(tmp_path / "graph" / "step0" / "rank0", FINE)
    write_rank(tmp_path / "pynative" / "step0" / "rank0", BAD)
    report = ovf.find_first_overflow(tmp_path)
    assert report.step_label == "pynative/step0"
    assert [label for label, _ in report.steps] == ["graph/step0", "pynative/step0"]


def test_rank_names_that_are_none(tmp_path):
    write_rank(tmp_path / "step0" / "rankabc", BAD)
    write_rank(tmp_path / "step0" / "rank1", FINE)
    report = ovf.find_first_overflow(tmp_path / "step0")
    assert report.verdict == "clean"
    assert any("rankabc" in n.text for n in report.notes)


def test_a_gap_in_the_ranks_is_named(tmp_path):
    fine = t(0.5, 0.1)
    data = dict([collective("all_reduce", fine, fine, ranks=(0, 1, 2, 3))])
    report = ovf.find_first_overflow(write_step(tmp_path / "step0", {0: data, 1: data, 3: data}))
    assert report.verdict == "clean"
    assert report.incomplete
    assert any(n.kind == "missing_ranks" and n.ranks == (2,) for n in report.notes)


def test_what_enters_from_a_missing_rank_is_named(tmp_path):
    bad, fine = t(NAN, NAN), t(0.5, 0.1)
    data = {**dict([collective("all_reduce", fine, bad, ranks=(0, 1, 2))]), **loss_chain()}
    report = ovf.find_first_overflow(write_step(tmp_path / "step0", {0: data, 1: data}))
    assert report.first.kind == "missing_rank"
    assert report.first.missing_ranks == (2,)
    assert "rank 2" in report.first.reason


# --- values and containers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", [NAN, "nan", "NaN", " nan\t", "-nan"])
def test_every_spelling_of_nan(tmp_path, spelling):
    data = {
        "Torch.log.0.forward": op([t(1.0, -1.0)], [t(spelling, spelling)]),
        **loss_chain(t(spelling, spelling)),
    }
    assert rank_answer(tmp_path, data).first.op_name == "Torch.log.0.forward"


def test_mean_and_norm_are_no_evidence(tmp_path):
    value = {**t(40000.0, -1.0, "torch.float16"), "Norm": INF, "Mean": -INF}
    assert rank_answer(tmp_path, {"Torch.add.0.forward": op([value], [value])}).verdict == "clean"


@pytest.mark.parametrize("depth", [1, 50, 390])
def test_values_are_found_at_any_depth(tmp_path, depth):
    def nest(value):
        for level in range(depth):
            value = [value] if level % 2 else {"k": value}
        return value

    data = {"Torch.log.0.forward": op([nest(t(1.0, -1.0))], [nest(t(NAN, NAN))]), **loss_chain()}
    assert rank_answer(tmp_path, data).first.op_name == "Torch.log.0.forward"


def test_a_tensor_as_the_whole_output(tmp_path):
    data = {
        "Torch.log.0.forward": {"input_args": [t(1.0, -1.0)], "output": t(NAN, NAN)},
        **loss_chain(),
    }
    assert rank_answer(tmp_path, data).first.op_name == "Torch.log.0.forward"


def test_the_seed_form_of_names_and_outputs(tmp_path):
    data = {
        "Distributed.all_reduce_0_0": {
            "input": [],
            "input_args": [],
            "input_kwargs": {},
            "output": {"0": {"Max": "inf", "Min": "inf"}},
        }
    }
    assert rank_answer(tmp_path, data).first.op_name == "Distributed.all_reduce_0_0"


def test_user_keys_that_look_like_ours(tmp_path):
    tricky = {"Max": t(1.0, -1.0), "shape": {"type": t(2.0, 1.0)}, "value": [t(3.0, 1.0)]}
    data = {
        "my_pkg.ops.foo.0.forward": op([tricky], [{**tricky, "dtype": [t(NAN, NAN)]}]),
        **loss_chain(),
    }
    assert rank_answer(tmp_path, data).first.op_name == "my_pkg.ops.foo.0.forward"


@pytest.mark.parametrize("header", [{"task": "structure"}, {"summary_mode": "xor"}])
def test_a_dump_without_values_is_no_evidence(tmp_path, header):
    bare = {
        "type": "torch.Tensor",
        "dtype": "torch.float16",
        "shape": [8, 8],
        "md5": "0x12345678abcdef01",
    }
    report = rank_answer(tmp_path, {"Torch.log.0.forward": op([bare], [bare])}, **header)
    assert report.verdict == "no_evidence"
    assert report.exit_code == 2


def test_unflushed_statistics_are_unknown(tmp_path):
    bare = {
        "type": "torch.Tensor",
        "dtype": "torch.float16",
        "shape": [8, 8],
        "tensor_stat_index": 4,
    }
    assert rank_answer(tmp_path, {"Torch.log.0.forward": op([bare], [bare])}).verdict == "no_evidence"


def test_a_debug_dump_names_the_first_bad_value(tmp_path):
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    data = {"x.0.debug": t(1.0, 0.0), "y.0.debug": {"a": [t(NAN, NAN)]}, "y_grad.0.debug": None}
    (folder / "debug.json").write_text(json.dumps(dump(data, level="debug")))
    assert answer(tmp_path) == (0, "y.0.debug")


def test_a_dump_of_outputs_alone(tmp_path):
    data = {
        "Torch.log.0.forward": {"output": [t(NAN, NAN)]},
        "Torch.mul.0.forward": {"output": [t(NAN, NAN)]},
        "Functional.cross_entropy.0.forward": {"output": [t(NAN, NAN, shape=())]},
    }
    report = rank_answer(tmp_path, data)
    assert report.first.op_name == "Torch.log.0.forward"
    assert len(report.findings) == 1


def test_only_overflowing_ops_in_an_old_overflow_check_dump(tmp_path):
    extra = {"Max_except_inf_nan": 3.0, "Min_except_inf_nan": -1.0}
    data = {"Torch.matmul.3.forward": op([t(300.0, 1.0, "torch.float16")], [{**t(INF, 1.0, "torch.float16"), **extra}])}
    assert rank_answer(tmp_path, data, task="overflow_check").first.op_name == "Torch.matmul.3.forward"


def test_mindspore_names(tmp_path):
    data = {
        "Mint.log.0.forward": op([t(1.0, -1.0, "Float32")], [t(NAN, NAN, "Float32")]),
        "Cell.net.Dense.forward.0": op([t(NAN, NAN, "Float32")], [t(NAN, NAN, "Float32")]),
    }
    assert rank_answer(tmp_path, data, framework="mindspore").first.op_name == "Mint.log.0.forward"


def test_point_to_point_is_matched_by_order(tmp_path):
    bad, fine = t(NAN, NAN), t(0.5, -0.5)
    ranks = {
        0: {
            "Torch.log.0.forward": op([t(1.0, -1.0)], [bad]),
            **dict([send(fine, 1, 5), send(bad, 1, 9)]),
        },
        1: {**dict([recv(fine, 0, 0), recv(bad, 0, 1)]), **loss_chain()},
    }
    report = ovf.find_first_overflow(write_step(tmp_path / "step0", ranks))
    assert (report.first.rank, report.first.op_name) == (0, "Torch.log.0.forward")
    assert [(s.rank, s.via) for s in report.path][:3] == [
        (0, "origin"),
        (0, "data"),
        (1, "communication"),
    ]
