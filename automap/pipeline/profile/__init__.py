"""What a step costs item by item along its forward pass, and what a cut there sends and stores."""
