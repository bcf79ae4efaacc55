"""Language models: GPT and Llama, text, tokenizers, generation."""

from nnmpi.addons import AddOn

ADD_ON = AddOn(
    modules=(
        "nnmpi.addons.language",
        *("nnmpi.nn.gpt", "nnmpi.nn.gpt2", "nnmpi.nn.llama", "nnmpi.nn.llama_folder"),
        *("nnmpi.nn.language", "nnmpi.io.files.folders"),
        *(f"nnmpi.data.{name}" for name in ("text", "windows", "tokenizer", "bpe", "pieces")),
        *("nnmpi.run.text", "nnmpi.generate", "nnmpi.tokenize"),
    ),
    uses=("planning", "transformer"),
    rows={
        "options": {"language": "nnmpi.addons.language.options:PART"},
        "names": {
            "generate": "nnmpi.run.text.generation:generate",
            "nn.GPT": "nnmpi.nn.gpt:GPT",
            "nn.Llama": "nnmpi.nn.llama:Llama",
            **{
                name: f"nnmpi.{name}"
                for name in (
                    *("nn.gpt", "nn.gpt2", "nn.llama", "nn.llama_folder", "nn.language"),
                    *("data.text", "data.windows", "data.tokenizer", "data.bpe"),
                    "data.pieces",
                )
            },
        },
        "models": {
            "gpt2": "nnmpi.run.text.models:GPT2",
            "gpt": "nnmpi.run.text.models:GPT",
            "llama": "nnmpi.run.text.models:LLAMA",
        },
        "model_facts": dict.fromkeys(
            ("nnmpi.nn.gpt:GPT", "nnmpi.nn.llama:Llama"), "nnmpi.run.text.models:LanguageFacts"
        ),
        "model_checks": {
            "dropout": "nnmpi.run.text.models:check_dropout",
            "sample_every": "nnmpi.run.text.models:check_stages",
        },
        "model_files": {"folder": "nnmpi.io.files.folders:ModelFolder"},
        "datasets": {
            "text": "nnmpi.data.text:TEXT",
            "tokens": "nnmpi.data.windows:TOKENS",
        },
        "data_options": dict.fromkeys(
            ("context", "tokenizer"), "nnmpi.run.text.saved:data_options"
        ),
        "tokenizers": {"text": "nnmpi.run.text.saved:tokenizer_of_text"},
        "language_checks": {"load": "nnmpi.run.text.saved:check_vocabulary"},
        "methods": {"generate": "nnmpi.run.text.samples:generate"},
        "samplers": {"sample_every": "nnmpi.run.text.samples:agreed_sampler"},
        "read_every": {"sample_every": "nnmpi.run.text.samples:read_every"},
    },
    commands={
        "generate": ("nnmpi.run.text.generate_command", "generate text with a saved model"),
        "tokenize": ("nnmpi.tokenize.__main__", "write the tokens of a text to a file"),
    },
    files=("nnmpi/data/embedded/new-testament.txt.gz",),
)
