"""`python -m g2c_serving train`: makes the tokenizer, trains a model, measures what it can do."""

from __future__ import annotations

import argparse
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from g2c_serving.paths import DATA, ROOT
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.train.drafter import DrafterRun
from g2c_serving.train.gpt import DEFAULT_CONFIG, DRAFTER_CONFIG, WINDOW_CONFIG
from g2c_serving.train.trainer import Run, TrainingConfig, export, load_checkpoint, train

TOKENIZER = DATA / "tokenizers" / "tiny" / "tokenizer.json"
DRAFTER = "tiny-drafter"
MODELS: dict[str, dict[str, Any]] = {
    "tiny": DEFAULT_CONFIG,
    "tiny-window": WINDOW_CONFIG,
    DRAFTER: DRAFTER_CONFIG,
}
DRAFTER_STEPS = 3000  # they are short ones


def main(argv: list[str] | None = None) -> int:
    """The `train` command. Returns 0, or 2 after a message that says what to do."""
    args = _parser().parse_args(argv)
    try:
        return _COMMANDS[args.what](args)
    except (ValueError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; --resume goes on from here", file=sys.stderr)
        return 130


def _train_tokenizer(args: argparse.Namespace) -> int:
    from g2c_serving.train.vocabulary import learn_tokenizer

    path = args.out / "tokenizers" / "tiny" / "tokenizer.json"
    tokenizer = learn_tokenizer(args.seed)
    tokenizer.save(path)
    print(f"{path}: {tokenizer.vocab_size} tokens")
    return 0


def _train_model(args: argparse.Namespace) -> int:
    folder = args.out / "models" / args.what
    if args.measure:
        from g2c_serving.train.quality import measure

        print(measure(folder).table())
        return 0
    usual = DRAFTER_STEPS if args.what == DRAFTER else TrainingConfig.steps
    steps = usual if args.steps is None else args.steps
    config = TrainingConfig(steps=steps, seed=args.seed, model=dict(MODELS[args.what]))
    own = args.out / "tokenizers" / "tiny" / "tokenizer.json"
    run = _run_of(args.what)(config, Tokenizer.load(own if own.is_file() else TOKENIZER))
    checkpoint = checkpoint_path(args.out, args.what)
    if args.resume:
        load_checkpoint(run, checkpoint)
    train(run, checkpoint, show_progress)
    results = export(run, args.out, args.what)
    print(f"\ndone: {folder}, {results['steps_completed']} steps in "
          f"{run.seconds:.0f} s, held-out loss {results['final_val_loss']:.3f}")  # fmt: skip
    return 0


def _run_of(name: str) -> type[Run]:
    return DrafterRun if name == DRAFTER else Run


def checkpoint_path(out: Path, name: str = "tiny") -> Path:
    """One checkpoint for each model and each folder that is written to, outside that folder."""
    if out != DATA:
        name = f"{name}-{sha256(str(out.resolve()).encode()).hexdigest()[:8]}"
    return ROOT / ".cache" / "train" / f"{name}.pt"


def show_progress(run: Run) -> None:
    """A counter in one line of a terminal; in a file, a line every fifty steps."""
    left = run.seconds / run.step * (run.config.steps - run.step)
    line = f"step {run.step}/{run.config.steps}  loss {run.loss:.3f}  {run.seconds:.0f} s"
    line += f", about {left:.0f} s left   "
    if sys.stdout.isatty():
        print("\r" + line, end="", flush=True)
    elif run.step % 50 == 0:
        print(line.rstrip(), flush=True)


_COMMANDS = {"tokenizer": _train_tokenizer, **dict.fromkeys(MODELS, _train_model)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m g2c_serving train", description=__doc__)
    parser.add_argument("what", choices=list(_COMMANDS))
    parser.add_argument("--steps", type=int, help="default: as it is shipped")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=DATA, help="where models/ and tokenizers/ go (default: data)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--measure", action="store_true", help="only measure the model's quality")
    return parser
