class WebSearchTool:
    def __init__(self, api_key):
        self.api_key = api_key
    
    async def execute(self, query: str, max_results: int = 5):
        # Implement web search logic
        results = await self.search_web(query)
        return {
            "query": query,
            "results": results[:max_results],
            "found": len(results)
        }

# Register tool
tools = {"web_search": WebSearchTool(api_key="your-key")}
rollout.agent.set_tools(tools)
