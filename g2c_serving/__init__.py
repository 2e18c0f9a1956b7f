"""g2c_serving: a small, real LLM inference engine to read, run and change.

The notebooks in `notebooks/` walk through it, section by section of the Brief on DeepInfer.
"""

from g2c_serving.async_engine import AsyncEngine
from g2c_serving.backend import Backend, InferenceResult
from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.checkpoints import load
from g2c_serving.forward.inflate import inflate
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import EngineStats, StepRecord
from g2c_serving.output import RequestOutput
from g2c_serving.process.chat import chat
from g2c_serving.process.prompt import Prompt, Reserved, Text
from g2c_serving.process.streaming import OutputParser, ToolCall
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.request import Request, SamplingParams
from g2c_serving.sample.grammar import Grammar
from g2c_serving.sample.ledger import Ledger
from g2c_serving.sample.logprobs import TokenLogprobs
from g2c_serving.sample.verify_budget import Plan, plan, split
from g2c_serving.schedule.cost_model import CostModel, StepShape
from g2c_serving.schedule.step_curve import StepCurve

__all__ = [
    "AsyncEngine",
    "Backend",
    "CostModel",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "Grammar",
    "InferenceResult",
    "LanguageModel",
    "Ledger",
    "OutputParser",
    "Plan",
    "Prompt",
    "Request",
    "RequestOutput",
    "Reserved",
    "SamplingParams",
    "Speculation",
    "StepCurve",
    "StepRecord",
    "StepShape",
    "Text",
    "TokenLogprobs",
    "Tokenizer",
    "ToolCall",
    "chat",
    "inflate",
    "load",
    "plan",
    "split",
]
