"""The callback transport: unary calls to agent servers, which call the trainer back."""
