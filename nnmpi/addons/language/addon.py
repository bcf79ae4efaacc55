"""Language models: GPT and Llama, text, tokenizers, generation."""

from nnmpi.addons import AddOn

_MODULES = {
    **{
        f"nn.{name}": f"nnmpi.addons.language.models.{name}"
        for name in ("gpt", "gpt2", "llama", "llama_folder")
    },
    "nn.language": "nnmpi.addons.language.models.folders",
    **{
        f"data.{name}": f"nnmpi.addons.language.data.{name}"
        for name in ("text", "windows", "tokenizer", "bpe", "pieces")
    },
}

ADD_ON = AddOn(
    modules=("nnmpi.addons.language", "nnmpi.generate", "nnmpi.tokenize"),
    uses=("planning", "transformer"),
    of_step=tuple(
        f"nnmpi.addons.language.models.{name}" for name in ("gpt", "gpt2", "llama", "folders")
    ),
    rows={
        "options": {"language": "nnmpi.addons.language.options:ADDED"},
        "names": {
            "generate": "nnmpi.addons.language.run.generation:generate",
            "Trainer.generate": "nnmpi.addons.language.run.samples:generate",
            "nn.GPT": "nnmpi.addons.language.models.gpt:GPT",
            "nn.Llama": "nnmpi.addons.language.models.llama:Llama",
            **_MODULES,
        },
        "modules": _MODULES,
        "models": {
            "gpt2": "nnmpi.addons.language.run.models:GPT2",
            "gpt": "nnmpi.addons.language.run.models:GPT",
            "llama": "nnmpi.addons.language.run.models:LLAMA",
        },
        "model_facts": dict.fromkeys(
            (
                "nnmpi.addons.language.models.gpt:GPT",
                "nnmpi.addons.language.models.llama:Llama",
            ),
            "nnmpi.addons.language.run.models:LanguageFacts",
        ),
        "checks": {
            "dropout": "nnmpi.addons.language.run.models:DROPOUT",
            "sample_every": "nnmpi.addons.language.run.models:STAGES",
            "load": "nnmpi.addons.language.text_data:CHECKS",
        },
        "model_files": {"folder": "nnmpi.addons.language.saved_folders:ModelFolder"},
        "datasets": {
            "text": "nnmpi.addons.language.data.text:TEXT",
            "tokens": "nnmpi.addons.language.data.windows:TOKENS",
        },
        "data_options": dict.fromkeys(
            ("context", "tokenizer", "load"), "nnmpi.addons.language.text_data:data_options"
        ),
        "run_parts": {"sample_every": "nnmpi.addons.language.run.samples:PARTS"},
    },
    commands={
        "generate": (
            "nnmpi.addons.language.run.generate_command",
            "generate text with a saved model",
        ),
        "tokenize": (
            "nnmpi.addons.language.tokenize_command",
            "write the tokens of a text to a file",
        ),
    },
)
