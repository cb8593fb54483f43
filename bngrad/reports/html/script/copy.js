// Copies a command.

function setUpCopy(button) {
  const code = button.parentElement.querySelector("code");
  button.setAttribute("aria-label", `Copy ${code.textContent}`);
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // the browser does not let this file write to the clipboard
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
}
