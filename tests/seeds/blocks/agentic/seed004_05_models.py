# OpenAI API
async def openai_llm_func(messages, **kwargs):
    import openai
    client = openai.AsyncOpenAI(api_key="your-key")
    response = await client.chat.completions.create(
        model="gpt-4",
        messages=messages,
        **kwargs
    )
    return response.choices[0].message.content

# Claude API
async def claude_llm_func(messages, **kwargs):
    from osmosis_grpc.agentic import ClaudeAPIClient
    client = ClaudeAPIClient(api_key="your-key")
    return await client.generate(messages, **kwargs)

# Use with any compatible LLM
rollout = AgenticRollout(config=config, llm_generate_func=claude_llm_func)
