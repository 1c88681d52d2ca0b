"""What one rank does in a simulated step: the program that `World` runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ovf.testing import values
from ovf.testing.recorder import Recorder
from ovf.testing.step import Op, Origin
from ovf.testing.values import P2POp, Scalar, TensorStat, Value
from ovf.testing.world import Collective, Program, Receive, Request

if TYPE_CHECKING:
    from ovf.testing.fault import Fault, FaultPlace
    from ovf.testing.layout import Axis
    from ovf.testing.training import Training
    from ovf.testing.world import World

Compute: TypeAlias = Generator[Request, TensorStat, TensorStat]

GRAD_SCALE = 2.0**-5
WEIGHT_SCALE = 2.0**-3
# Above half of the largest fp16 number, 65504: two of these never fit into fp16 when summed.
FP16_LARGE = 65536.0

_TRUE = Scalar("bool", value=True)
_FALSE = Scalar("bool", value=False)
_MINUS_INF = Scalar("float", -math.inf)
_LAST_DIM = Scalar("int", -1)


def _bad(stat: TensorStat) -> bool:
    high, low = stat[2], stat[3]
    return high - high != 0 or low - low != 0  # type: ignore[operator]  # NaN and Inf only


class RankProgram:
    """One rank of a simulated step.

    Shapes are `[batch, sequence, hidden]` for activations and `[out, in]` for weights.
    """

    def __init__(
        self,
        training: Training,
        rank: int,
        world: World,
        sink: Callable[[Op], None],
        *,
        show: Callable[[Fault, Origin], None],
    ) -> None:
        """Set up weights and find out which faults strike here.

        Args:
            training: the step.
            rank: the global rank.
            world: the other ranks.
            sink: takes this rank's ops.
            show: is told where a planted fault showed.
        """
        self.training = training
        self.rank = rank
        self.world = world
        self.rng = values.seeded(training.seed, rank)
        self._show = show
        layout = training.layout
        self.place = layout.place(rank)
        self.first = self.place.pp == 0
        self.last = self.place.pp == layout.pp - 1
        stride = layout.tp * layout.dp
        self.before, self.after = rank - stride, rank + stride
        self.layers = len(training.stage_layers(self.place.pp))
        self.dtype = training.compute_dtype
        self.hidden = (training.batch, training.sequence, training.hidden)
        self.record = Recorder(
            sink,
            training.level,
            numbered_parameters_grad=training.numbered_parameters_grad,
        )
        self._due = self._faults_due()
        self._saved: dict[int, list[dict[str, int]]] = {}
        self._logits: dict[int, TensorStat] = {}
        self._extra: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
        self._shown_weight: set[Fault] = set()
        self.weights: dict[str, dict[str, TensorStat]] = {}
        self.grads: dict[str, dict[str, TensorStat]] = {}
        self._make_weights()

    # What is planted here.

    def _faults_due(self) -> dict[tuple[FaultPlace, int, int], Fault]:
        """Find the faults that strike this rank, by place, micro-batch and layer."""
        training, layout = self.training, self.training.layout
        due: dict[tuple[FaultPlace, int, int], Fault] = {}
        for fault in training.faults:
            axis: Axis | None = {"tp_all_reduce": "tp", "dp_all_reduce": "dp"}.get(fault.place)  # type: ignore[assignment]
            here = layout.group(axis, fault.rank).ranks if axis else (fault.rank,)
            if self.rank not in here:
                continue
            micro_batch = fault.micro_batch % training.micro_batches
            layer = fault.layer % self.layers
            if fault.place in {"weight", "dp_all_reduce", "optimizer"}:
                micro_batch = 0
            if fault.place in {"batch", "recv"}:
                layer = 0
            place: FaultPlace = "forward" if fault.place == "expert" else fault.place
            due[place, micro_batch, layer] = fault
        return due

    def _fault(self, place: FaultPlace, micro_batch: int = 0, layer: int = 0) -> Fault | None:
        return self._due.get((place, micro_batch, layer)) if self._due else None

    def _show_next(self, fault: Fault, api: str) -> None:
        """Tell that the next call of an API is where a fault shows."""
        self._show(fault, Origin(self.rank, self.record.next_name(api), fault.kind))

    # Values.

    def _draw(self, shape: tuple[int, ...], *inputs: TensorStat, scale: float = 4.0) -> TensorStat:
        """Give the outcome of an op that mixes elements: NaN if any input is bad."""
        for stat in inputs:
            if _bad(stat):
                return values.nan(self.dtype, shape)
        return values.draw(self.rng, self.dtype, shape, scale)

    def _grad(self, shape: tuple[int, ...], *inputs: TensorStat) -> TensorStat:
        return self._draw(shape, *inputs, scale=GRAD_SCALE)

    def _sum(self, left: TensorStat, right: TensorStat) -> TensorStat:
        """Give left + right: Inf stays Inf beside finite numbers, all else that is bad is NaN."""
        total = self._draw(left.shape)
        bad = [stat for stat in (left, right) if _bad(stat)]
        if not bad:
            return total
        if len(bad) == 1 and bad[0].max == values.INF and not values.is_non_finite(bad[0].min):
            return values.overflown(total)
        return values.nan(self.dtype, left.shape)

    def _make_weights(self) -> None:
        training, tp = self.training, self.training.layout.tp
        hidden, wide = training.hidden, 4 * training.hidden // tp
        if self.first:
            self._weight("embedding.tokens.Embedding", (training.vocabulary, hidden), bias=False)
            self._weight("embedding.patches.Linear", (hidden, 64))
        for layer in range(self.layers):
            base = f"layers.{layer}"
            self._norm_weight(f"{base}.input_norm.LayerNorm")
            self._weight(f"{base}.attention.qkv.Linear", (3 * hidden // tp, hidden))
            self._weight(f"{base}.attention.proj.Linear", (hidden, hidden // tp))
            self._norm_weight(f"{base}.mlp_norm.LayerNorm")
            if training.layout.ep > 1:
                experts = (training.layout.ep, hidden)
                self._weight(f"{base}.mlp.router.Linear", experts, bias=False)
                self._weight(f"{base}.mlp.expert.fc1.Linear", (4 * hidden, hidden))
                self._weight(f"{base}.mlp.expert.fc2.Linear", (hidden, 4 * hidden))
            else:
                self._weight(f"{base}.mlp.fc1.Linear", (wide, hidden))
                self._weight(f"{base}.mlp.fc2.Linear", (hidden, wide))
            if self._fault("weight", 0, layer):
                weights = self.weights[self._fc1(layer)]
                weights["weight"] = values.nan(self.dtype, weights["weight"].shape)
        if self.last:
            self._norm_weight("final_norm.LayerNorm")
            self._weight("head.Linear", (training.vocabulary, hidden), bias=False)

    def _fc1(self, layer: int) -> str:
        expert = "expert." if self.training.layout.ep > 1 else ""
        return f"layers.{layer}.mlp.{expert}fc1.Linear"

    def _weight(self, module: str, shape: tuple[int, int], *, bias: bool = True) -> None:
        own = {"weight": values.draw(self.rng, self.dtype, shape, WEIGHT_SCALE)}
        if bias:
            own["bias"] = values.draw(self.rng, self.dtype, shape[:1], WEIGHT_SCALE)
        self.weights[module] = own

    def _norm_weight(self, module: str) -> None:
        shape = (self.training.hidden,)
        self.weights[module] = {
            "weight": values.constant(self.dtype, shape, 1.0, requires_grad=True),
            "bias": values.constant(self.dtype, shape, 0.0, requires_grad=True),
        }

    # The step.

    def run(self) -> Program:
        """Do the step: micro-batches in the order of the schedule, then the update.

        Yields:
            What this rank waits for.
        """
        yield from self._warm_up()
        if self.training.schedule == "gpipe":
            yield from self._gpipe()
        else:
            yield from self._one_forward_one_backward()
        yield from self._update()

    def _warm_up(self) -> Program:
        layout = self.training.layout
        index = self.place.dp + layout.dp * self.place.pp
        if self.training.warm_up and index % 2 == 0 and layout.tp > 1:
            ones = values.constant("torch.float32", (1,), 1.0)
            yield from self._all_reduce(ones, "tp", "warm_up")

    def _gpipe(self) -> Program:
        batches = range(self.training.micro_batches)
        for batch in batches:
            received = yield from self._exchange([], [] if self.first else [self.before], batch)
            out = yield from self._forward(batch, received)
            if not self.last:
                yield from self._exchange([(self.after, out)], [])
        for batch in batches:
            received = yield from self._exchange([], [] if self.last else [self.after])
            grad = yield from self._backward(batch, received)
            if not self.first:
                yield from self._exchange([(self.before, grad)], [])

    def _one_forward_one_backward(self) -> Program:
        batches = self.training.micro_batches
        ahead = min(self.training.layout.pp - self.place.pp - 1, batches)
        before = [] if self.first else [self.before]
        after = [] if self.last else [self.after]
        for batch in range(ahead):
            received = yield from self._exchange([], before, batch)
            out = yield from self._forward(batch, received)
            yield from self._exchange([(peer, out) for peer in after], [])
        received = None
        if ahead < batches:
            received = yield from self._exchange([], before, ahead)
        for batch in range(ahead, batches):
            out = yield from self._forward(batch, received)
            grad_out = yield from self._exchange([(peer, out) for peer in after], after)
            grad = yield from self._backward(batch - ahead, grad_out)
            more = before if batch + 1 < batches else []
            received = yield from self._exchange([(peer, grad) for peer in before], more, batch + 1)
        for batch in range(batches - ahead, batches):
            grad_out = yield from self._exchange([], after)
            grad = yield from self._backward(batch, grad_out)
            yield from self._exchange([(peer, grad) for peer in before], [])

    # Communication.

    def _group_kwargs(self, axis: Axis) -> tuple[dict[str, Value], list[Value]]:
        """Give the group argument and its copy among the outputs; none for the default group."""
        group = self.training.layout.group(axis, self.rank)
        if axis != "tp" and len(group.ranks) == self.training.layout.ranks:
            return {}, []
        return {"group": group}, [group]

    def _all_reduce(
        self,
        value: TensorStat,
        axis: Axis,
        site: str,
        fault: Fault | None = None,
        scale: float = 4.0,
    ) -> Compute:
        group = self.training.layout.group(axis, self.rank)
        outcome = yield Collective(
            (group.ranks, group.group_id), value, scale=scale, overflow=fault is not None
        )
        if fault and not _bad(value) and outcome.max == values.INF:
            self._show_next(fault, "Distributed.all_reduce")
        kwargs, copy = self._group_kwargs(axis)
        self.record.call("Distributed.all_reduce", site, [value], [outcome, *copy], kwargs)
        return outcome

    def _tp_reduce(
        self, value: TensorStat, fault: Fault | None = None, scale: float = 4.0
    ) -> Compute:
        if self.training.layout.tp == 1:
            return value
        return (yield from self._all_reduce(value, "tp", "tp_reduce", fault, scale))

    def _all_to_all(self, value: TensorStat, scale: float = 4.0) -> Compute:
        group = self.training.layout.group("ep", self.rank)
        outcome = yield Collective((group.ranks, group.group_id), value, shared=False, scale=scale)
        kwargs, copy = self._group_kwargs("ep")
        self.record.call(
            "Distributed.all_to_all_single",
            "tokens",
            [self._buffer(value.shape), value],
            [outcome, value, *copy],
            kwargs,
        )
        return outcome

    def _buffer(self, shape: tuple[int, ...]) -> TensorStat | None:
        """Give what a buffer to receive into is recorded as."""
        return self._garbage(shape) if self.training.garbage_buffers else None

    def _garbage(self, shape: tuple[int, ...]) -> TensorStat:
        choice = self.rng.randrange(3)
        if choice == 0:
            return values.nan(self.dtype, shape, requires_grad=False)
        scale = 2.0**15 if choice == 1 else 2.0**-14
        return values.draw(self.rng, self.dtype, shape, scale, requires_grad=False)

    def _exchange(
        self,
        sends: Sequence[tuple[int, TensorStat]],
        sources: Sequence[int],
        micro_batch: int | None = None,
    ) -> Generator[Request, TensorStat, TensorStat | None]:
        """Send to and receive from neighbouring stages.

        Args:
            sends: peers and tensors.
            sources: peers to receive from, at most one.
            micro_batch: which activation is received; None for a gradient.
        """
        for peer, value in sends:
            self.world.send(self.rank, peer, value)
        mode = self.training.p2p
        if mode != "batch":
            for peer, value in sends:
                to = Scalar("int", peer)
                kept = value if mode == "send" else None
                self.record.call(f"Distributed.{mode}", "send", [value, to], [kept, to])
        received: TensorStat | None = None
        api = {"send": "recv", "isend": "irecv", "batch": "batch_isend_irecv"}[mode]
        for source in sources:
            received = yield Receive(source)
            fault = None if micro_batch is None else self._fault("recv", micro_batch)
            if fault and not _bad(received):
                received = values.nan(received.dtype, received.shape)
                self._show_next(fault, f"Distributed.{api}")
            if mode != "batch":
                peer_arg = Scalar("int", source)
                self.record.call(
                    f"Distributed.{api}",
                    "recv",
                    [self._buffer(self.hidden), peer_arg],
                    [received, peer_arg],
                )
        if mode == "batch" and (sends or sources):
            group = self.training.layout.group("world", self.rank).group_id
            sent = [P2POp("isend", peer, value, group) for peer, value in sends]
            before = [P2POp("irecv", peer, self._garbage(self.hidden), group) for peer in sources]
            after = [P2POp("irecv", peer, received, group) for peer in sources]
            self.record.call(
                "Distributed.batch_isend_irecv", "exchange", [[*sent, *before]], [[*sent, *after]]
            )
        return received

    # Layers, forward. `saved` maps a site to the number its backward needs.

    def _forward(self, batch: int, received: TensorStat | None) -> Compute:
        saved: dict[str, int] = {}
        hidden = received if received is not None else self._embed(batch, saved)
        layers = [saved]
        self._saved[batch] = layers
        for layer in range(self.layers):
            own: dict[str, int] = {}
            layers.append(own)
            hidden = yield from self._layer(batch, layer, hidden, own)
        if self.last:
            hidden = self._loss(batch, hidden, saved)
        return hidden

    def _embed(self, batch: int, saved: dict[str, int]) -> TensorStat:
        training = self.training
        record = self.record
        ids = TensorStat("torch.int64", self.hidden[:2], training.vocabulary - 1, 0)
        table = self.weights["embedding.tokens.Embedding"]["weight"]
        record.enter("embedding.tokens.Embedding", "forward", batch)
        tokens = self._draw(self.hidden, table)
        saved["tokens"] = record.call(
            "Functional.embedding",
            "embedding",
            [ids, table, None, None, Scalar("float", 2.0), _FALSE, _FALSE],
            [tokens],
        )
        record.leave([ids], [tokens], {"weight": table})
        shape = (*self.hidden[:2], 64)
        patches = values.draw(self.rng, self.dtype, shape, 1.0, requires_grad=False)
        fault = self._fault("batch", batch)
        if fault:
            patches = values.nan(self.dtype, shape, requires_grad=False)
            self._show_next(fault, "Functional.linear")
        projected = self._linear(patches, "embedding.patches.Linear", batch, saved)
        total = self._sum(tokens, projected)
        saved["add"] = record.call("Tensor.__add__", "embedding_add", [tokens, projected], [total])
        return total

    def _layer(self, batch: int, layer: int, hidden: TensorStat, saved: dict[str, int]) -> Compute:
        record = self.record
        base = f"layers.{layer}"
        record.enter(f"{base}.TransformerLayer", "forward", batch)
        normed = self._norm(hidden, f"{base}.input_norm.LayerNorm", batch, saved)
        record.enter(f"{base}.attention.SelfAttention", "forward", batch)
        qkv = self._linear(normed, f"{base}.attention.qkv.Linear", batch, saved)
        context = self._attention(qkv, batch, layer, saved)
        attended = self._linear(context, f"{base}.attention.proj.Linear", batch, saved)
        attended = yield from self._tp_reduce(attended)
        record.leave([normed], [attended])
        between = self._sum(hidden, attended)
        saved["add1"] = record.call("Tensor.__add__", "residual", [hidden, attended], [between])
        normed = self._norm(between, f"{base}.mlp_norm.LayerNorm", batch, saved)
        if self.training.layout.ep > 1:
            mixed = yield from self._moe(normed, batch, layer, saved)
        else:
            mixed = yield from self._mlp(normed, batch, layer, saved)
        out = self._sum(between, mixed)
        saved["add2"] = record.call("Tensor.__add__", "residual", [between, mixed], [out])
        record.leave([hidden], [out])
        return out

    def _norm(
        self, hidden: TensorStat, module: str, batch: int, saved: dict[str, int]
    ) -> TensorStat:
        weights = self.weights[module]
        self.record.enter(module, "forward", batch)
        out = self._draw(hidden.shape, hidden, *weights.values())
        saved[module] = self.record.call(
            "Functional.layer_norm",
            "norm",
            [
                hidden,
                [Scalar("int", self.training.hidden)],
                weights["weight"],
                weights["bias"],
                Scalar("float", 1e-05),
            ],
            [out],
        )
        self.record.leave([hidden], [out], weights)
        return out

    def _linear(
        self,
        hidden: TensorStat,
        module: str,
        batch: int,
        saved: dict[str, int],
        scale: float = 4.0,
    ) -> TensorStat:
        weights = self.weights[module]
        weight = weights["weight"]
        self.record.enter(module, "forward", batch)
        if _bad(weight):
            self._show_weight(module)
        shape = (*hidden.shape[:-1], weight.shape[0])
        out = self._draw(shape, hidden, weight, scale=scale)
        saved[module] = self.record.call(
            "Functional.linear", "linear", [hidden, weight, weights.get("bias")], [out]
        )
        self.record.leave([hidden], [out], weights)
        return out

    def _show_weight(self, module: str) -> None:
        layer = int(module.split(".")[1])
        fault = self._fault("weight", 0, layer)
        if fault and fault not in self._shown_weight:
            self._shown_weight.add(fault)
            self._show_next(fault, "Functional.linear")

    def _attention(
        self, qkv: TensorStat, batch: int, layer: int, saved: dict[str, int]
    ) -> TensorStat:
        record = self.record
        training = self.training
        heads = training.heads // training.layout.tp
        size, tokens = training.batch, training.sequence
        head = max(training.hidden // training.heads, 1)
        query = self._draw((size, heads, tokens, head), qkv)
        key = self._draw((size, heads, head, tokens), qkv)
        value = self._draw((size, heads, tokens, head), qkv)
        square = (size, heads, tokens, tokens)
        scores = self._draw(square, query, key, scale=16.0)
        saved["scores"] = record.call("Torch.matmul", "scores", [query, key], [scores])
        scaled = self._draw(square, scores)
        factor = Scalar("float", math.sqrt(head))
        saved["scale"] = record.call("Tensor.__truediv__", "scale", [scores, factor], [scaled])
        mask = TensorStat("torch.bool", (1, 1, tokens, tokens), max=True, min=False)
        masked = scaled
        if not _bad(scaled):
            masked = scaled._replace(min=-math.inf, mean=-math.inf, norm=math.inf)
        saved["mask"] = record.call(
            "Tensor.masked_fill", "mask", [scaled, mask, _MINUS_INF], [masked]
        )
        if _bad(scaled):
            weights = values.nan(self.dtype, square)
        else:
            weights = values.draw(self.rng, self.dtype, square, 2.0)._replace(max=1.0, min=0.0)
            fault = self._fault("masked_row", batch, layer)
            if fault:
                weights = values.nan(self.dtype, square)
                self._show_next(fault, "Functional.softmax")
        saved["softmax"] = record.call(
            "Functional.softmax", "softmax", [masked], [weights], {"dim": _LAST_DIM}
        )
        context = self._draw((size, heads, tokens, head), weights, value)
        saved["context"] = record.call("Torch.matmul", "context", [weights, value], [context])
        return context._replace(shape=(size, tokens, heads * head))

    def _mlp(self, hidden: TensorStat, batch: int, layer: int, saved: dict[str, int]) -> Compute:
        base = f"layers.{layer}.mlp"
        self.record.enter(f"{base}.MLP", "forward", batch)
        wide = self._linear(hidden, f"{base}.fc1.Linear", batch, saved)
        active = self._activate(wide, batch, layer, saved)
        fault = self._fault("tp_all_reduce", batch, layer)
        scale = FP16_LARGE if fault else 4.0
        out = self._linear(active, f"{base}.fc2.Linear", batch, saved, scale)
        out = yield from self._tp_reduce(out, fault, scale)
        self.record.leave([hidden], [out])
        return out

    def _activate(
        self, wide: TensorStat, batch: int, layer: int, saved: dict[str, int]
    ) -> TensorStat:
        """Run gelu, then whatever goes wrong before the second linear."""
        active = self._draw(wide.shape, wide)
        if not _bad(active):
            active = active._replace(min=-0.1699)
        saved["gelu"] = self.record.call("Functional.gelu", "gelu", [wide], [active])
        fault = self._fault("forward", batch, layer)
        if fault:
            active = self._break(fault, active, batch, layer)
        fault = self._fault("corruption", batch, layer)
        if fault and not _bad(active):
            self._show_next(fault, "Functional.linear")
            active = values.nan(active.dtype, active.shape)
        return active

    def _break(self, fault: Fault, active: TensorStat, batch: int, layer: int) -> TensorStat:
        """Run the ops of a compute fault: exp of 200, log of 0 or a division by 0."""
        record = self.record
        extra = self._extra.setdefault((batch, layer), [])

        def run(api: str, inputs: list[Value], out: TensorStat) -> TensorStat:
            if _bad(active):
                out = values.nan(self.dtype, active.shape)
            elif _bad(out):
                self._show_next(fault, api)
            extra.append((api, record.call(api, "gate", inputs, [out]), len(inputs)))
            return out

        def filled(value: float) -> TensorStat:
            return values.constant(self.dtype, active.shape, value, requires_grad=True)

        how = values.seeded(self.training.seed, fault).choice(("exp", "log", "div"))
        zero = run("Tensor.__mul__", [active, Scalar("float", 0.0)], filled(0.0))
        if how == "exp":
            large = run("Tensor.__add__", [zero, Scalar("float", 200.0)], filled(200.0))
            return run("Torch.exp", [large], filled(math.inf))
        if how == "log":
            return run("Torch.log", [zero], filled(-math.inf))
        return run("Torch.div", [active, zero], values.nan(self.dtype, active.shape))

    def _moe(self, hidden: TensorStat, batch: int, layer: int, saved: dict[str, int]) -> Compute:
        record = self.record
        base = f"layers.{layer}.mlp"
        experts = self.training.layout.ep
        tokens = self.training.batch * self.training.sequence
        capacity = max(tokens // experts, 1)
        record.enter(f"{base}.MoE", "forward", batch)
        flat = hidden._replace(shape=(tokens, self.training.hidden))
        logits = self._linear(flat, f"{base}.router.Linear", batch, saved)
        chances = self._draw(logits.shape, logits, scale=1.0)
        saved["route"] = record.call("Torch.softmax", "router", [logits, _LAST_DIM], [chances])
        best = self._draw((tokens, 1), chances, scale=1.0)
        chosen = TensorStat("torch.int64", (tokens, 1), experts - 1, 0)
        saved["topk"] = record.call(
            "Torch.topk", "router", [chances, Scalar("int", 1)], [best, chosen], {"dim": _LAST_DIM}
        )
        mask = TensorStat(self.dtype, (experts, capacity, tokens), 1.0, 0.0, 0.1, 16.0)
        shape = (experts, capacity, self.training.hidden)
        sent = self._draw(shape, flat)
        saved["dispatch"] = record.call(
            "Torch.einsum", "dispatch", [Scalar("str", "ect,td->ecd"), mask, flat], [sent]
        )
        received = yield from self._all_to_all(sent)
        record.enter(f"{base}.expert.Expert", "forward", batch)
        wide = self._linear(received, f"{base}.expert.fc1.Linear", batch, saved)
        active = self._activate(wide, batch, layer, saved)
        done = self._linear(active, f"{base}.expert.fc2.Linear", batch, saved)
        record.leave([received], [done])
        back = yield from self._all_to_all(done)
        out = self._draw((tokens, self.training.hidden), back, best)
        saved["combine"] = record.call(
            "Torch.einsum", "combine", [Scalar("str", "ect,ecd->td"), mask, back], [out]
        )
        out = out._replace(shape=self.hidden)
        record.leave([hidden], [out])
        return out

    def _loss(self, batch: int, hidden: TensorStat, saved: dict[str, int]) -> TensorStat:
        record = self.record
        vocabulary = self.training.vocabulary
        normed = self._norm(hidden, "final_norm.LayerNorm", batch, saved)
        logits = self._linear(normed, "head.Linear", batch, saved)
        self._logits[batch] = logits
        tokens = self.hidden[0] * self.hidden[1]
        flat = logits._replace(shape=(tokens, vocabulary))
        labels = TensorStat("torch.int64", (tokens,), vocabulary - 1, 0)
        loss = self._scalar_loss(logits)
        saved["loss"] = record.call("Functional.cross_entropy", "loss", [flat, labels], [loss])
        mean = self._scalar_loss(logits)
        saved["mean_loss"] = record.call(
            "Tensor.__truediv__",
            "mean_loss",
            [loss, Scalar("int", self.training.micro_batches)],
            [mean],
        )
        return mean

    def _scalar_loss(self, logits: TensorStat) -> TensorStat:
        value = math.nan if _bad(logits) else 2.0 + int(self.rng.random() * 128) / 64
        return values.constant("torch.float32", (), value, requires_grad=True)

    # Layers, backward.

    def _backward(self, batch: int, received: TensorStat | None) -> Compute:
        layers = self._saved.pop(batch)
        saved = layers[0]
        grad = received if received is not None else self._loss_backward(batch, saved)
        for layer in reversed(range(self.layers)):
            grad = yield from self._layer_backward(batch, layer, grad, layers[layer + 1])
        if self.first:
            self._embed_backward(batch, grad, saved)
        return grad

    def _loss_backward(self, batch: int, saved: dict[str, int]) -> TensorStat:
        record = self.record
        one = values.constant("torch.float32", (), 1.0)
        share = values.constant("torch.float32", (), 1.0 / self.training.micro_batches)
        record.backward("Tensor.__truediv__", saved["mean_loss"], [one], [share, None])
        tokens = self.hidden[0] * self.hidden[1]
        flat = (tokens, self.training.vocabulary)
        # The gradient of the picked log-probabilities is finite whatever the logits are; what the
        # log-softmax inside makes of it is first seen as the head's input.
        picked = TensorStat(
            "torch.float32", flat, 0.0, -1.0 / tokens, -1.0 / math.prod(flat), 0.125
        )
        record.backward("Functional.cross_entropy", saved["loss"], [share], [picked])
        logits = self._logits.pop(batch)
        grad = self._grad(logits.shape, logits)
        grad = self._linear_backward(grad, "head.Linear", batch, saved)
        return self._norm_backward(grad, "final_norm.LayerNorm", batch, saved)

    def _embed_backward(self, batch: int, grad: TensorStat, saved: dict[str, int]) -> None:
        record = self.record
        record.backward("Tensor.__add__", saved["add"], [grad], [grad, grad])
        self._linear_backward(grad, "embedding.patches.Linear", batch, saved, leaf=True)
        module = "embedding.tokens.Embedding"
        table = self._grad(self.weights[module]["weight"].shape, grad)
        record.enter(module, "backward", batch)
        record.leave([grad], [])
        record.backward("Functional.embedding", saved["tokens"], [grad], [table])
        self._accumulate(module, batch, {"weight": table})

    def _layer_backward(
        self, batch: int, layer: int, grad: TensorStat, saved: dict[str, int]
    ) -> Compute:
        record = self.record
        base = f"layers.{layer}"
        record.enter(f"{base}.TransformerLayer", "backward", batch)
        record.backward("Tensor.__add__", saved["add2"], [grad], [grad, grad])
        if self.training.layout.ep > 1:
            inner = yield from self._moe_backward(grad, batch, layer, saved)
        else:
            inner = yield from self._mlp_backward(grad, batch, layer, saved)
        inner = self._norm_backward(inner, f"{base}.mlp_norm.LayerNorm", batch, saved)
        between = self._grad(self.hidden, grad, inner)
        record.backward("Tensor.__add__", saved["add1"], [between], [between, between])
        record.enter(f"{base}.attention.SelfAttention", "backward", batch)
        inner = self._linear_backward(between, f"{base}.attention.proj.Linear", batch, saved)
        inner = self._attention_backward(inner, saved)
        inner = self._linear_backward(inner, f"{base}.attention.qkv.Linear", batch, saved)
        inner = yield from self._tp_reduce(inner, scale=GRAD_SCALE)
        record.leave([between], [inner])
        inner = self._norm_backward(inner, f"{base}.input_norm.LayerNorm", batch, saved)
        out = self._grad(self.hidden, between, inner)
        record.leave([grad], [out])
        return out

    def _attention_backward(self, grad: TensorStat, saved: dict[str, int]) -> TensorStat:
        record = self.record
        training = self.training
        heads, tokens = training.heads // training.layout.tp, training.sequence
        square = (training.batch, heads, tokens, tokens)
        flat = (training.batch * heads, tokens, tokens)
        head = max(training.hidden // training.heads, 1)
        out = grad._replace(shape=(training.batch, heads, tokens, head))
        record.backward("Torch.matmul", saved["context"], [out], [out])
        weights = self._grad(square, grad)
        scores = self._grad(square, weights)
        record.backward("Functional.softmax", saved["softmax"], [weights], [scores])
        masked = scores
        record.backward("Tensor.masked_fill", saved["mask"], [scores], [masked, None])
        scaled = self._grad(square, masked)
        record.backward("Tensor.__truediv__", saved["scale"], [masked], [scaled, None])
        record.backward("Torch.matmul", saved["scores"], [scaled], [scaled._replace(shape=flat)])
        return self._grad((*self.hidden[:2], 3 * training.hidden // training.layout.tp), scaled)

    def _mlp_backward(
        self, grad: TensorStat, batch: int, layer: int, saved: dict[str, int]
    ) -> Compute:
        base = f"layers.{layer}.mlp"
        self.record.enter(f"{base}.MLP", "backward", batch)
        inner = self._linear_backward(grad, f"{base}.fc2.Linear", batch, saved)
        inner = self._activate_backward(inner, batch, layer, saved)
        inner = self._linear_backward(inner, f"{base}.fc1.Linear", batch, saved)
        inner = yield from self._tp_reduce(inner, scale=GRAD_SCALE)
        self.record.leave([grad], [inner])
        return inner

    def _activate_backward(
        self, grad: TensorStat, batch: int, layer: int, saved: dict[str, int]
    ) -> TensorStat:
        for api, number, inputs in reversed(self._extra.pop((batch, layer), [])):
            # Each extra op stood in a chain whose values were bad: so is its gradient.
            self.record.backward(api, number, [grad], [grad, *[None] * (inputs - 1)])
        out = self._grad(grad.shape, grad)
        fault = self._fault("backward", batch, layer)
        if fault and not _bad(grad):
            out = values.nan(grad.dtype, grad.shape)
            name = f"Functional.gelu.{saved['gelu']}.backward"
            self._show(fault, Origin(self.rank, name, fault.kind))
        self.record.backward("Functional.gelu", saved["gelu"], [grad], [out])
        return out

    def _moe_backward(
        self, grad: TensorStat, batch: int, layer: int, saved: dict[str, int]
    ) -> Compute:
        record = self.record
        base = f"layers.{layer}.mlp"
        experts = self.training.layout.ep
        tokens = self.training.batch * self.training.sequence
        capacity = max(tokens // experts, 1)
        shape = (experts, capacity, self.training.hidden)
        record.enter(f"{base}.MoE", "backward", batch)
        flat = grad._replace(shape=(tokens, self.training.hidden))
        back = self._grad(shape, grad)
        record.backward("Torch.einsum", saved["combine"], [flat], [flat])
        done = yield from self._all_to_all(back, GRAD_SCALE)
        record.enter(f"{base}.expert.Expert", "backward", batch)
        inner = self._linear_backward(done, f"{base}.expert.fc2.Linear", batch, saved)
        inner = self._activate_backward(inner, batch, layer, saved)
        inner = self._linear_backward(inner, f"{base}.expert.fc1.Linear", batch, saved)
        record.leave([done], [inner])
        sent = yield from self._all_to_all(inner, GRAD_SCALE)
        record.backward("Torch.einsum", saved["dispatch"], [sent], [sent])
        best = self._grad((tokens, 1), grad)
        chances = self._grad((tokens, experts), best)
        record.backward("Torch.topk", saved["topk"], [best, None], [chances])
        logits = self._grad((tokens, experts), chances)
        record.backward("Torch.softmax", saved["route"], [chances], [logits])
        routed = self._linear_backward(logits, f"{base}.router.Linear", batch, saved)
        out = self._grad(self.hidden, sent, routed)
        record.leave([grad], [out])
        return out

    def _linear_backward(
        self,
        grad: TensorStat,
        module: str,
        batch: int,
        saved: dict[str, int],
        *,
        leaf: bool = False,
    ) -> TensorStat:
        """Run a linear's backward.

        The API record shows the flattened gradient, as autograd's outermost node does; the
        gradient of the input is what the module record and the next op show.
        """
        record = self.record
        weights = self.weights[module]
        weight = weights["weight"]
        record.enter(module, "backward", batch)
        flat = (math.prod(grad.shape[:-1]), grad.shape[-1])
        record.backward("Functional.linear", saved[module], [grad], [grad._replace(shape=flat)])
        self._accumulate(
            module, batch, {name: self._grad(own.shape, grad) for name, own in weights.items()}
        )
        out = self._grad((*grad.shape[:-1], weight.shape[1]), grad, weight)
        record.leave([grad], [None if leaf else out])
        return out

    def _norm_backward(
        self, grad: TensorStat, module: str, batch: int, saved: dict[str, int]
    ) -> TensorStat:
        record = self.record
        record.enter(module, "backward", batch)
        out = self._grad(grad.shape, grad)
        own = {
            name: self._grad(weight.shape, grad) for name, weight in self.weights[module].items()
        }
        record.backward("Functional.layer_norm", saved[module], [grad], [out, *own.values()])
        self._accumulate(module, batch, own)
        record.leave([grad], [out])
        return out

    def _accumulate(self, module: str, batch: int, grads: dict[str, TensorStat]) -> None:
        """Add to the gradients of a module's parameters, and record their sums."""
        held = self.grads.get(module)
        if held is not None:
            grads = {name: self._grad(grad.shape, grad, held[name]) for name, grad in grads.items()}
        self.grads[module] = grads
        last = batch == self.training.micro_batches - 1
        if last or self.training.numbered_parameters_grad:
            self.record.parameters_grad(module, batch, grads)

    # The update.

    def _buckets(self) -> list[tuple[int | None, Axis, list[str]]]:
        """Group modules into gradient buckets: layer, the group that shares it, modules."""
        found: dict[tuple[int | None, Axis], list[str]] = {}
        for module in reversed(self.weights):
            parts = module.split(".")
            layer = int(parts[1]) if parts[0] == "layers" else None
            axis: Axis = "expert_dp" if ".expert." in module else "dp"
            found.setdefault((layer, axis), []).append(module)
        return [(layer, axis, modules) for (layer, axis), modules in found.items()]

    def _update(self) -> Program:
        buckets: list[tuple[TensorStat, list[str]]] = []
        for layer, axis, modules in self._buckets():
            bucket = yield from self._reduce_bucket(layer, axis, modules)
            buckets.append((bucket, modules))
        coefficient = yield from self._clip_coefficient([bucket for bucket, _ in buckets])
        clipped: dict[str, TensorStat] = {}
        for bucket, modules in buckets:
            if coefficient.max == 0.0 and not _bad(bucket):
                out = values.constant(self.dtype, bucket.shape, 0.0)
            else:
                out = self._grad(bucket.shape, bucket, coefficient)
            self.record.call("Tensor.mul_", "clip", [bucket, coefficient], [out])
            clipped.update(dict.fromkeys(modules, out))
        for module, weights in self.weights.items():
            for name, weight in weights.items():
                self._update_weight(module, name, weight, clipped[module])

    def _reduce_bucket(self, layer: int | None, axis: Axis, modules: list[str]) -> Compute:
        grads = [grad for module in modules for grad in self.grads[module].values()]
        size = sum(math.prod(grad.shape) for grad in grads)
        fault = None
        if axis == "dp" and layer is not None:
            fault = self._fault("dp_all_reduce", 0, layer)
        scale = FP16_LARGE if fault else GRAD_SCALE
        bucket = self._draw((size,), *grads, scale=scale)._replace(requires_grad=False)
        replicas = len(self.training.layout.group(axis, self.rank).ranks)
        if replicas == 1:
            return bucket
        summed = yield from self._all_reduce(bucket, axis, "dp_reduce", fault, scale)
        mean = self._grad(summed.shape)._replace(requires_grad=False)
        if _bad(summed):
            only_inf = summed.max == values.INF and not values.is_non_finite(summed.min)
            mean = values.overflown(mean) if only_inf else summed
        self.record.call("Tensor.div_", "dp_mean", [summed, Scalar("int", replicas)], [mean])
        return mean

    def _clip_coefficient(self, buckets: list[TensorStat]) -> Compute:
        """Compute what gradients are scaled by: the whole step's norm goes through one sum."""
        record = self.record

        def scalar(value: float) -> TensorStat:
            return values.constant("torch.float32", (), value)

        norms = []
        for bucket in buckets:
            value = 1.0 + int(self.rng.random() * 64) / 64
            if _bad(bucket):
                only_inf = bucket.max == values.INF and not values.is_non_finite(bucket.min)
                value = math.inf if only_inf else math.nan
            norms.append(scalar(value))
            record.call("Tensor.norm", "norm_of_grads", [bucket], [norms[-1]])
        squares = [float(norm.max) ** 2 for norm in norms]  # type: ignore[arg-type]
        total = scalar(sum(squares))
        shape = (len(norms),)
        listed = TensorStat("torch.float32", shape, max(squares), min(squares), 1.0, 1.0)
        if math.isnan(sum(squares)):
            listed = values.nan("torch.float32", shape, requires_grad=False)
        record.call("Tensor.sum", "norm_of_grads", [listed], [total])
        if self.training.layout.ranks > 1:
            total = yield from self._all_reduce(total, "world", "norm_of_grads", scale=256.0)
        norm = scalar(math.sqrt(float(total.max)))  # type: ignore[arg-type]
        record.call("Tensor.sqrt", "norm_of_grads", [total], [norm])
        coefficient = scalar(1.0 / (float(norm.max) + 1e-6))  # type: ignore[arg-type]
        record.call("Tensor.reciprocal", "norm_of_grads", [norm], [coefficient])
        return coefficient

    def _update_weight(
        self, module: str, name: str, weight: TensorStat, bucket: TensorStat
    ) -> None:
        grad = self._grad(weight.shape, bucket)._replace(requires_grad=False)
        layer = int(module.split(".")[1]) if module.startswith("layers.") else -1
        fault = self._fault("optimizer", 0, layer)
        if fault and module == self._fc1(layer) and name == "weight":
            divided = values.nan(self.dtype, weight.shape, requires_grad=False)
            zero = values.constant(self.dtype, weight.shape, 0.0)
            if not _bad(grad):
                self._show_next(fault, "Torch.div")
            self.record.call("Torch.div", "precondition", [grad, zero], [divided])
            grad = divided
        out = self._draw(weight.shape, weight, grad, scale=WEIGHT_SCALE)
        self.record.call(
            "Tensor.add_", "update", [weight, grad], [out], {"alpha": Scalar("float", -0.01)}
        )
