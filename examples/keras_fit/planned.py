"""A small Keras model on its JAX backend, trained by `Model.fit`.

On one device: python -m examples.keras_fit.plain
Under a plan:  python -m examples.keras_fit.planned
"""

from collections.abc import Sequence
import os
from pathlib import Path


os.environ["KERAS_BACKEND"] = "jax"

import keras  # noqa: E402
import numpy as np  # noqa: E402

import automap  # noqa: E402
from examples.parts.options import Options, log_progress, read_options  # noqa: E402
from examples.parts.text import VOCABULARY, Text  # noqa: E402


WIDTH, LENGTH = 128, 64


def make_model() -> keras.Model:
    """Bytes to the scores of those that come next, with all that `fit` needs."""
    keras.utils.set_random_seed(0)
    given = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(given)
    for dilation in (1, 2, 4):
        wide = keras.layers.Conv1D(2 * WIDTH, 2, padding="causal", dilation_rate=dilation)(x)
        wide = keras.layers.Activation("gelu")(keras.layers.BatchNormalization()(wide))
        x = keras.layers.add([x, keras.layers.Dense(WIDTH)(keras.layers.Dropout(0.05)(wide))])
    model = keras.Model(given, keras.layers.Dense(VOCABULARY)(x))
    rate = keras.optimizers.schedules.CosineDecay(0.0, 190, warmup_target=3e-3, warmup_steps=10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(rate), loss, metrics=["accuracy"])
    return model


def batches(text: Text, start: int):
    """Endless, of bytes and those that come next."""
    while True:
        batch = text.batch(start)
        yield batch["bytes"], batch["next"]
        start += 1


def held_out(text: Text) -> tuple[np.ndarray, np.ndarray]:
    """All that is held out, bytes and those that come next."""
    parts = text.held_out()
    return tuple(np.concatenate([part[name] for part in parts]) for name in ("bytes", "next"))


class Progress(keras.callbacks.Callback):
    """A line of the log after each epoch, which is as many steps as are between evaluations."""

    def on_epoch_end(self, epoch, logs=None):
        """Log the mean loss of the epoch."""
        number, rate = self.model.optimizer.iterations, self.model.optimizer.learning_rate
        log_progress(int(number), logs["loss"], logs["val_loss"], float(rate))


def start_training(options: Options) -> keras.Model:
    """A new model, or that of the checkpoint, whatever devices it was saved from."""
    if options.checkpoint is not None and _file(options).exists():
        return keras.saving.load_model(_file(options))
    return make_model()


def _file(options: Options) -> Path:
    return Path(options.checkpoint or "") / "model.keras"


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the mean losses of the epochs."""
    options, text = read_options(arguments), Text(length=LENGTH)
    model = start_training(options)
    train_step = automap.parallelize(model.train_step, donate_argnums=0)
    model.train_function = lambda state, batches: train_step(state, next(batches))
    start, callbacks = int(model.optimizer.iterations), [Progress()]
    if options.checkpoint is not None:
        callbacks.append(keras.callbacks.ModelCheckpoint(_file(options)))
    history = model.fit(
        batches(text, start),
        initial_epoch=start // options.every,
        epochs=options.steps // options.every,
        steps_per_epoch=options.every,
        validation_data=held_out(text),
        shuffle=False,
        callbacks=callbacks,
        verbose=0,
    )
    return history.history["loss"]


if __name__ == "__main__":
    main()
