"""The APIs: a folder for each that clients know, and folders for what these share.

Each line imports from the lines below it and from nothing above it; names in one line do not know each other.

    kserve                                        KServe's Open Inference Protocol
    system                                        health, metrics, models, the inside, the WebSocket
    ollama                                        Ollama
    anthropic | batches | infill | pooling | responses
                                                  Anthropic's Messages; OpenAI's files and batches;
                                                  texts with a gap, of Mistral and llama.cpp; embeddings,
                                                  rankings and labels, of OpenAI, vLLM, Jina, Cohere and TEI;
                                                  OpenAI's Responses and Conversations
    openai                                        completions, chat completions, their tokens
    generation | messages                         from a body's limits to an answer's tokens; what
                                                  conversations consist of: parts, items, tools, results
    common | parsers                              bodies, fields, lists; a model's text: thoughts and calls

A `schema.py` or `*_schema.py` has request bodies, an `answer_schema.py` answers. Where a folder has one API,
`endpoints.py` has its paths.
"""
