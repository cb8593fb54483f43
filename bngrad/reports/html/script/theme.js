// Light and dark: as the system is, until the reader chooses.

function setUpTheme(button) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("bngrad-theme"); } catch { /* storage is off for this file */ }
  const current = () => chosen ?? (dark.matches ? "dark" : "light");
  function apply() {
    if (chosen) ROOT.dataset.theme = chosen;
    button.querySelector("span").textContent = current() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use ${current() === "dark" ? "light" : "dark"} colors`);
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = current() === "dark" ? "light" : "dark";
    try { localStorage.setItem("bngrad-theme", chosen); } catch { /* as above */ }
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}
