"""Model files in, `ModelSource` out: GGUF and Hugging Face safetensors directories."""
