"""Float recurrent layers (LSTM, GRU, simple RNN) as one operator that loops over its steps, for readers of every format."""
