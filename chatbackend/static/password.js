// A button in each password field that shows what was typed. Without scripts the fields are as they are.

for (const field of document.querySelectorAll('input[type="password"]')) {
  const box = document.createElement("div");
  const button = document.createElement("button");
  box.className = "revealable";
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Show";
  button.setAttribute("aria-label", `Show: ${field.labels[0]?.textContent ?? "password"}`);
  button.setAttribute("aria-pressed", "false");
  const focused = document.activeElement === field; // which moving it undoes
  field.replaceWith(box);
  box.append(field, button);
  if (focused) field.focus();
  button.addEventListener("click", () => {
    const shown = field.type === "password";
    field.type = shown ? "text" : "password";
    button.textContent = shown ? "Hide" : "Show";
    button.setAttribute("aria-pressed", String(shown));
  });
  // Sent as a password, so that no browser keeps it among the words it offers.
  field.form?.addEventListener("submit", () => (field.type = "password"));
}
