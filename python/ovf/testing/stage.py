"""The part of the model one rank runs: its layers, the embedding, the loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ovf.testing import values
from ovf.testing.attention import Attention
from ovf.testing.experts import Experts
from ovf.testing.mlp import Mlp
from ovf.testing.rank import GRAD_SCALE, Compute, Rank, is_bad
from ovf.testing.values import Scalar, TensorStat

if TYPE_CHECKING:
    from ovf.testing.channel import Channel
    from ovf.testing.modules import Modules

_FALSE = Scalar("bool", value=False)


class Stage:
    """Runs micro-batches forward and backward through one pipeline stage.

    `saved` maps a site or module to the call number its backward needs.
    """

    def __init__(self, rank: Rank, modules: Modules, channel: Channel) -> None:
        """Take what the rank's other parts share.

        Args:
            rank: the rank.
            modules: its modules.
            channel: its way to other ranks.
        """
        self.at = rank
        self.modules = modules
        self.channel = channel
        self.attention = Attention(rank)
        mlp = Mlp(rank, modules, channel)
        experts = rank.training.layout.ep > 1
        self.mlp: Mlp | Experts = Experts(rank, modules, channel, mlp) if experts else mlp
        self._saved: dict[int, list[dict[str, int]]] = {}
        self._logits: dict[int, TensorStat] = {}

    def forward(self, batch: int, received: TensorStat | None) -> Compute:
        """Run a micro-batch forward.

        Args:
            batch: the micro-batch.
            received: activations from the stage before; None on the first.

        Returns:
            Activations for the stage after; the loss on the last.
        """
        saved: dict[str, int] = {}
        hidden = received if received is not None else self._embed(batch, saved)
        layers = [saved]
        self._saved[batch] = layers
        for layer in range(self.at.layers):
            own: dict[str, int] = {}
            layers.append(own)
            hidden = yield from self._layer(batch, layer, hidden, own)
        if self.at.last:
            hidden = self._loss(batch, hidden, saved)
        return hidden

    def _embed(self, batch: int, saved: dict[str, int]) -> TensorStat:
        training = self.at.training
        record = self.at.record
        ids = TensorStat("torch.int64", self.at.hidden[:2], training.vocabulary - 1, 0)
        table = self.modules.weights["embedding.tokens.Embedding"]["weight"]
        record.enter("embedding.tokens.Embedding", "forward", batch)
        tokens = self.at.draw(self.at.hidden, table)
        saved["tokens"] = record.call(
            "Functional.embedding",
            "embedding",
            [ids, table, None, None, Scalar("float", 2.0), _FALSE, _FALSE],
            [tokens],
        )
        record.leave([ids], [tokens], {"weight": table})
        shape = (*self.at.hidden[:2], 64)
        patches = values.draw(self.at.rng, self.at.dtype, shape, 1.0, requires_grad=False)
        fault = self.at.fault("batch", batch)
        if fault:
            patches = values.nan(self.at.dtype, shape, requires_grad=False)
            self.at.show_next(fault, "Functional.linear")
        projected = self.modules.linear(patches, "embedding.patches.Linear", batch, saved)
        total = self.at.sum(tokens, projected)
        saved["add"] = record.call("Tensor.__add__", "embedding_add", [tokens, projected], [total])
        return total

    def _layer(self, batch: int, layer: int, hidden: TensorStat, saved: dict[str, int]) -> Compute:
        record = self.at.record
        base = f"layers.{layer}"
        record.enter(f"{base}.TransformerLayer", "forward", batch)
        normed = self.modules.norm(hidden, f"{base}.input_norm.LayerNorm", batch, saved)
        record.enter(f"{base}.attention.SelfAttention", "forward", batch)
        qkv = self.modules.linear(normed, f"{base}.attention.qkv.Linear", batch, saved)
        context = self.attention.forward(qkv, batch, layer, saved)
        attended = self.modules.linear(context, f"{base}.attention.proj.Linear", batch, saved)
        attended = yield from self.channel.tp_reduce(attended)
        record.leave([normed], [attended])
        between = self.at.sum(hidden, attended)
        saved["add1"] = record.call("Tensor.__add__", "residual", [hidden, attended], [between])
        normed = self.modules.norm(between, f"{base}.mlp_norm.LayerNorm", batch, saved)
        mixed = yield from self.mlp.forward(normed, batch, layer, saved)
        out = self.at.sum(between, mixed)
        saved["add2"] = record.call("Tensor.__add__", "residual", [between, mixed], [out])
        record.leave([hidden], [out])
        return out

    def _loss(self, batch: int, hidden: TensorStat, saved: dict[str, int]) -> TensorStat:
        record = self.at.record
        vocabulary = self.at.training.vocabulary
        normed = self.modules.norm(hidden, "final_norm.LayerNorm", batch, saved)
        logits = self.modules.linear(normed, "head.Linear", batch, saved)
        self._logits[batch] = logits
        tokens = self.at.hidden[0] * self.at.hidden[1]
        flat = logits._replace(shape=(tokens, vocabulary))
        labels = TensorStat("torch.int64", (tokens,), vocabulary - 1, 0)
        loss = self._scalar_loss(logits)
        saved["loss"] = record.call("Functional.cross_entropy", "loss", [flat, labels], [loss])
        mean = self._scalar_loss(logits)
        saved["mean_loss"] = record.call(
            "Tensor.__truediv__",
            "mean_loss",
            [loss, Scalar("int", self.at.training.micro_batches)],
            [mean],
        )
        return mean

    def _scalar_loss(self, logits: TensorStat) -> TensorStat:
        value = math.nan if is_bad(logits) else 2.0 + int(self.at.rng.random() * 128) / 64
        return values.constant("torch.float32", (), value, requires_grad=True)

    def backward(self, batch: int, received: TensorStat | None) -> Compute:
        """Run a micro-batch backward.

        Args:
            batch: the micro-batch.
            received: the gradient from the stage after; None on the last.

        Returns:
            The gradient for the stage before.
        """
        layers = self._saved.pop(batch)
        saved = layers[0]
        grad = received if received is not None else self._loss_backward(batch, saved)
        for layer in reversed(range(self.at.layers)):
            grad = yield from self._layer_backward(batch, layer, grad, layers[layer + 1])
        if self.at.first:
            self._embed_backward(batch, grad, saved)
        return grad

    def _loss_backward(self, batch: int, saved: dict[str, int]) -> TensorStat:
        record = self.at.record
        one = values.constant("torch.float32", (), 1.0)
        share = values.constant("torch.float32", (), 1.0 / self.at.training.micro_batches)
        record.backward("Tensor.__truediv__", saved["mean_loss"], [one], [share, None])
        tokens = self.at.hidden[0] * self.at.hidden[1]
        flat = (tokens, self.at.training.vocabulary)
        # The gradient of the picked log-probabilities is finite whatever the logits are; what the
        # log-softmax inside makes of it is first seen as the head's input.
        picked = TensorStat("torch.float32", flat, 0.0, -1.0 / tokens, -1.0 / math.prod(flat), 0.125)
        record.backward("Functional.cross_entropy", saved["loss"], [share], [picked])
        logits = self._logits.pop(batch)
        grad = self.at.grad(logits.shape, logits)
        grad = self.modules.linear_backward(grad, "head.Linear", batch, saved)
        return self.modules.norm_backward(grad, "final_norm.LayerNorm", batch, saved)

    def _embed_backward(self, batch: int, grad: TensorStat, saved: dict[str, int]) -> None:
        record = self.at.record
        record.backward("Tensor.__add__", saved["add"], [grad], [grad, grad])
        self.modules.linear_backward(grad, "embedding.patches.Linear", batch, saved, leaf=True)
        module = "embedding.tokens.Embedding"
        table = self.at.grad(self.modules.weights[module]["weight"].shape, grad)
        record.enter(module, "backward", batch)
        record.leave([grad], [])
        record.backward("Functional.embedding", saved["tokens"], [grad], [table])
        self.modules.accumulate(module, batch, {"weight": table})

    def _layer_backward(self, batch: int, layer: int, grad: TensorStat, saved: dict[str, int]) -> Compute:
        record = self.at.record
        base = f"layers.{layer}"
        record.enter(f"{base}.TransformerLayer", "backward", batch)
        record.backward("Tensor.__add__", saved["add2"], [grad], [grad, grad])
        inner = yield from self.mlp.backward(grad, batch, layer, saved)
        inner = self.modules.norm_backward(inner, f"{base}.mlp_norm.LayerNorm", batch, saved)
        between = self.at.grad(self.at.hidden, grad, inner)
        record.backward("Tensor.__add__", saved["add1"], [between], [between, between])
        record.enter(f"{base}.attention.SelfAttention", "backward", batch)
        inner = self.modules.linear_backward(between, f"{base}.attention.proj.Linear", batch, saved)
        inner = self.attention.backward(inner, saved)
        inner = self.modules.linear_backward(inner, f"{base}.attention.qkv.Linear", batch, saved)
        inner = yield from self.channel.tp_reduce(inner, scale=GRAD_SCALE)
        record.leave([between], [inner])
        inner = self.modules.norm_backward(inner, f"{base}.input_norm.LayerNorm", batch, saved)
        out = self.at.grad(self.at.hidden, between, inner)
        record.leave([grad], [out])
        return out
