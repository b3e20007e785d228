"""Models of the Hugging Face hub, or of whatever ``HF_ENDPOINT`` names: read, never downloaded."""

from calculator.hub.address import Address, parse_address
from calculator.hub.client import Limits, endpoint_from_environment
from calculator.hub.facts import Facts, RepoFile
from calculator.hub.headers import TensorGroup, WeightHeaders
from calculator.hub.repository import GgufModel, HubModel, clear_cache, fetch_gguf, fetch_model

__all__ = [
    "Address",
    "Facts",
    "GgufModel",
    "HubModel",
    "Limits",
    "RepoFile",
    "TensorGroup",
    "WeightHeaders",
    "clear_cache",
    "endpoint_from_environment",
    "fetch_gguf",
    "fetch_model",
    "parse_address",
]
